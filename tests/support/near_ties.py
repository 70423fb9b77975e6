"""Greedy texts with and without drafting diverge at near-tied logits only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

# Two continuations whose log-probabilities differ by less are near-tied: the target verifies K+1 rows at
# once, and batches of requests, in other bf16 sums than row by row, so that either may come first.
NEAR_TIE_GAP = 0.1
# AMX multiplies in blocks of rows, so that batches of one and of K+1 rows differ more often there: 21 of
# 120 texts diverged, at gaps up to 0.0625, and at most 4 elsewhere. In float32 none may, on any CPU.
NEAR_TIE_SHARE_WITH_AMX = 0.25


def near_tie_share(elsewhere: float) -> float:
    """Share of bf16 texts that may diverge at near-ties: `elsewhere` on a CPU without AMX."""
    return NEAR_TIE_SHARE_WITH_AMX if torch.cpu._is_amx_tile_supported() else elsewhere


def near_tie_gaps(
    plain: Sequence[Sequence[int]],
    plain_logprobs: Sequence[Sequence[Mapping[str, float]]],
    drafted: Sequence[Sequence[int]],
) -> list[float]:
    """Per text that diverges from the plain one: how far apart the plain run saw the two tokens where it
    first does. Infinite if the other token was not among the plain run's logged ones."""
    gaps = []
    for left, logprobs, right in zip(plain, plain_logprobs, drafted, strict=True):
        at = next((i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b), None)
        if at is not None:
            seen = logprobs[at]
            gaps.append(seen[str(left[at])] - seen.get(str(right[at]), float("-inf")))
    return gaps


def assert_only_near_ties(
    plain: Mapping[str, Any], drafted: Sequence[Sequence[int]], what: str, most: float = NEAR_TIE_GAP
) -> list[float]:
    """Compare drafted texts with as many of a plain result, and give the gaps where they diverge."""
    count = len(drafted)
    gaps = near_tie_gaps(plain["tokens"][:count], plain["logprobs"][:count], drafted)
    print(f"\n{what}: {len(gaps)} of {count} texts diverge, at gaps {sorted(gaps)}")
    assert max(gaps, default=0) <= most
    return gaps
