# SPDX-License-Identifier: Apache-2.0
"""What a self-test checks: layers of the published targets, divided among ranks as they are served."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from vllm_eagle_ext.replay.self_check.step import Shapes

WIDTH = 128  # of all their heads
# Key heads and value heads, as published.
TARGETS = {"Qwen3.6-27B": (16, 48), "Qwen3.6-35B-A3B": (16, 32), "Qwen3.5-397B-A17B": (16, 64)}
RANKS, KS, STATES = (1, 2, 4, 8), (3, 7, 15, 16), (torch.float32, torch.bfloat16)
# Each rank count, K and dtype of the state once or more.
QUICK = (("Qwen3.6-27B", 1, 15, STATES[0]), ("Qwen3.6-27B", 8, 3, STATES[1]),
         ("Qwen3.6-35B-A3B", 2, 7, STATES[0]), ("Qwen3.5-397B-A17B", 4, 16, STATES[1]))  # fmt: skip


@dataclass(frozen=True, slots=True)
class SelfTestCase:
    """One layer of a target on one of its ranks."""

    target: str
    ranks: int
    k: int
    state: torch.dtype

    @property
    def shapes(self) -> Shapes:
        key_heads, value_heads = TARGETS[self.target]
        return Shapes(
            H=key_heads // self.ranks,
            HV=value_heads // self.ranks,
            DK=WIDTH,
            DV=WIDTH,
            T=1 + self.k,
            state=self.state,
        )

    def __str__(self) -> str:
        state = str(self.state).removeprefix("torch.")
        return f"{self.target}, TP {self.ranks}, K {self.k}, {state} state"


def cases(*, quick: bool) -> Iterator[SelfTestCase]:
    """List all cases, or the few that show each size once."""
    if quick:
        yield from (SelfTestCase(*values) for values in QUICK)
        return
    for target in TARGETS:
        for ranks in RANKS:
            for k in KS:
                for state in STATES:
                    yield SelfTestCase(target, ranks, k, state)
