# SPDX-License-Identifier: Apache-2.0
"""Acceptance of single requests and of categories of prompts.

vLLM's histogram of a request counts its steps that verified drafts, by how many they accepted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vllm_eagle_ext.measure.engine.load import accepted_of

_MOST_BINS = 8
_NO_CATEGORY = "(none)"


def length_of(histograms: Sequence[Sequence[int]]) -> float:
    """Return the acceptance length over these requests; 0 where none had drafts."""
    drafts = sum(map(sum, histograms))
    return 1 + sum(accepted_of(histograms)) / drafts if drafts else 0.0


def spread_of(
    histograms: Sequence[Sequence[int]], k: int, categories: Sequence[str | None]
) -> dict[str, dict[str, float]]:
    """Return fields of a report: how many requests have which acceptance length, and that by category.

    Lengths are counted in equal bins "from-to" of 1 to at least K + 1, which hold their lower bound.
    """
    width = math.ceil(k / _MOST_BINS) or 1
    bins = {f"{start}-{start + width}": 0.0 for start in range(1, k + 1, width)}
    for length in map(length_of, ([one] for one in histograms)):
        if length:
            bins[list(bins)[min(int((length - 1) / width), len(bins) - 1)]] += 1
    own: dict[str, list[Sequence[int]]] = {}
    if any(categories):
        for one, category in zip(histograms, categories, strict=True):
            own.setdefault(category or _NO_CATEGORY, []).append(one)
    lengths = {name: length_of(some) for name, some in own.items()}
    return {
        "requests_by_length": bins,
        "length_by_category": {name: length for name, length in lengths.items() if length},
    }
