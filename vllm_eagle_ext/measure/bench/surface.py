# SPDX-License-Identifier: Apache-2.0
"""The break-even surface: the acceptance length from which a draft pays, at each load.

A step that drafts and verifies K tokens takes T(K), one without a draft T(0). With an acceptance length
E, tokens per step and request, drafting yields E / T(K) where plain decoding yields 1 / T(0): it pays
where E is above T(K) / T(0) (Leviathan et al. 2023, section 3.3, with measured times in place of a cost
ratio). Times hardly depend on which tokens are accepted, so that the surface holds for any draft of the
same shape, also for one that is yet to be trained.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vllm_eagle_ext.measure.bench.results import PLAIN, Report, Row, ServedLoad, Variant
from vllm_eagle_ext.measure.bench.summary import acceptance_length_of, pooled
from vllm_eagle_ext.measure.intervals import Interval, median_interval

_BISECTIONS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One K at one load."""

    load: ServedLoad
    k: int
    needed: Interval  # acceptance length: step times over those without a draft, paired by round
    length: float | None  # acceptance length that was measured; None where only times were

    @property
    def gain(self) -> float | None:
        """Return tokens per second over those without a draft, as times and acceptance length say."""
        return None if self.length is None else self.length / self.needed.median

    @property
    def needed_rate(self) -> float | None:
        """Return the acceptance of each position that pays; None: not even drafts without a fault do."""
        return rate_of(self.needed.median, self.k)


Surface = Mapping[tuple[ServedLoad, int], Point]


def surface_of(report: Report) -> Surface:
    """Return every K at every load for which both step times are known.

    The acceptance length is that of all loads of one context: the number of requests does not change it.
    """
    rows = [row for row in report.of("sweep") if row.variant.kind == "held"]
    found = {}
    for row in rows:
        alike = [one for one in rows if (one.variant, one.context) == (row.variant, row.context)]
        length = acceptance_length_of(*pooled(alike)) if row.variant.k else 1.0
        if row.step_ratio is not None:
            found[row.load, row.variant.k] = Point(
                load=row.load, k=row.variant.k, needed=row.step_ratio,
                length=None if report.settings.surface_only else length,
            )  # fmt: skip
    return found


def rates_by_position(report: Report) -> list[float]:
    """Give the share of all drafts of the largest K whose token at each position was accepted."""
    k = max(report.settings.ks)
    drafts, accepted = pooled([row for row in report.of("sweep") if row.variant.k == k])
    return [count / drafts for count in accepted[:k]] if drafts else []


def expected_length(rate: float, k: int) -> float:
    """Return the acceptance length of K tokens that are each accepted with this probability.

    A token counts where all before it were accepted: 1 + a + a^2 + .. + a^K (Leviathan et al. 2023,
    equation 1).
    """
    return sum(rate**position for position in range(k + 1))


def rate_of(length: float, k: int) -> float | None:
    """Solve `expected_length` for the rate; None of a length that K tokens do not reach."""
    if length <= 1:
        return 0.0
    if length > k + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_length(middle, k) < length else (low, middle)
    return high


def mean_gain(gains: Iterable[float]) -> float:
    """Return the geometric mean of the gains; 0 of none."""
    logs = [math.log(gain) for gain in gains]
    return math.exp(sum(logs) / len(logs)) if logs else 0.0


def gain_over_loads(report: Report, served: Variant) -> Interval | None:
    """Give the gain over no draft in the closing round: the mean over the loads, of each round."""
    by_round: dict[int, list[float]] = {}
    for row in report.of("closing"):
        plain = report.row("closing", PLAIN, row.load)
        if row.variant == served and plain:
            base = {run.repeat: run.tokens_per_s for run in plain.runs}
            for run in row.runs:
                if run.repeat in base:
                    ratio = run.tokens_per_s / base[run.repeat]
                    by_round.setdefault(run.repeat, []).append(ratio)
    means = [mean_gain(ratios) for ratios in by_round.values()]
    return median_interval(means) if means else None


def predicted_gain(surface: Surface, row: Row) -> float | None:
    """Give what the sweep promises of a row of the closing round."""
    k = row.variant.k_at(row.concurrency)
    point = None if k is None else surface.get((row.load, k))
    return point.gain if point else None
