# SPDX-License-Identifier: Apache-2.0
"""How much faster, from pairs of measurements: a median and an interval that assumes no distribution.

Measurement i of one variant is divided by measurement i of the other. They ran close to each other, so a
machine that drifts moves both. The interval of the median lies between two order statistics.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

COVERAGE = 0.95  # where the number of pairs allows it: from 6


@dataclass(frozen=True, slots=True)
class Interval:
    """`coverage` is that of low..high: the whole range where the pairs are too few for COVERAGE."""

    median: float
    low: float
    high: float
    coverage: float  # 0 of one pair
    pairs: int

    def overlaps(self, other: Interval) -> bool:
        return self.low <= other.high and other.low <= self.high

    @property
    def is_interval(self) -> bool:
        """Return whether the pairs make an interval: one pair says nothing of its error."""
        return self.pairs > 1


def paired(values: Mapping[int, float], base: Mapping[int, float]) -> Interval | None:
    """Return the interval of values / base, both by number, over the measurements that both have."""
    ratios = [values[repeat] / base[repeat] for repeat in sorted(values.keys() & base.keys())]
    return median_interval(ratios) if ratios else None


def median_interval(values: Sequence[float]) -> Interval:
    """Return the narrowest two order statistics of equal ranks that cover COVERAGE, or the range."""
    ordered, n = sorted(values), len(values)
    # The j-th smallest and largest enclose the median unless fewer than j values lie on one side of it.
    rank = 1
    while _outside(rank + 1, n) <= 1 - COVERAGE:
        rank += 1
    return Interval(
        median=statistics.median(ordered),
        low=ordered[rank - 1],
        high=ordered[n - rank],
        coverage=1 - _outside(rank, n),
        pairs=n,
    )


def _outside(rank: int, n: int) -> float:
    """Return how often the median lies outside the order statistics `rank` and n + 1 - rank.

    It is 1 of one value.
    """
    return float(2 * sum(math.comb(n, below) for below in range(rank)) / 2**n)
