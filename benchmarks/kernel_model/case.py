# SPDX-License-Identifier: Apache-2.0
"""The shapes that are modelled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vllm_eagle_ext.memory.state_blocks import record_width

WIDTH, CONVOLUTION = 128, 4
STATES = {"fp32": 4, "bf16": 2}  # bytes of an element
ROWS = (4, 8, 16)  # T = 1 + K
TENSOR_PARALLEL = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Target:
    """Gated delta net layers of a published target: heads of width 128."""

    name: str
    key_heads: int
    value_heads: int
    layers: int


TARGETS = (
    Target("Qwen3.6-27B", 16, 48, 48),
    Target("Qwen3.6-35B-A3B", 16, 32, 30),
    Target("Qwen3.5-397B-A17B", 16, 64, 45),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One layer's share of a rank, its state's type, and the rows of a step."""

    key_heads: int
    value_heads: int
    state: str  # fp32 or bf16
    rows: int  # T = 1 + K

    @property
    def state_bytes(self) -> int:
        return self.value_heads * WIDTH * WIDTH * STATES[self.state]

    @property
    def record_bytes(self) -> int:
        """Of one row, in bf16."""
        return 2 * record_width(self.key_heads, WIDTH, self.value_heads, WIDTH)

    @property
    def channels(self) -> int:
        return (2 * self.key_heads + self.value_heads) * WIDTH


def share(target: Target, tensor_parallel: int, state: str, rows: int) -> Case:
    heads = target.key_heads // tensor_parallel, target.value_heads // tensor_parallel
    return Case(*heads, state, rows)


def cases() -> Iterator[tuple[Target, int, Case]]:
    for target in TARGETS:
        for parallel in TENSOR_PARALLEL:
            for state in STATES:
                for rows in ROWS:
                    yield target, parallel, share(target, parallel, state, rows)
