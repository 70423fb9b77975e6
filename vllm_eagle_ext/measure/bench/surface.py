# SPDX-License-Identifier: Apache-2.0
"""The break-even surface: the acceptance length from which a draft pays, at each load.

A step that drafts and verifies K tokens takes T(K), one without a draft T(0). With an acceptance length
E, tokens per step and request, drafting yields E / T(K) where plain decoding yields 1 / T(0): it pays
where E is above T(K) / T(0) (Leviathan et al. 2023, section 3.3, with measured times in place of a cost
ratio). Times hardly depend on which tokens are accepted, so that the surface holds for any draft of the
same shape, also for one that is yet to be trained.

What follows from it: the best K, the best schedule by number of requests, and what to print. Predicted
gains choose what is served in the closing round; its measured ones choose what is printed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vllm_eagle_ext.measure.bench.results import (
    PLAIN,
    Interval,
    Report,
    Schedule,
    ServedLoad,
    Settings,
    TunedChoice,
    Variant,
    config_of,
    median_interval,
)
from vllm_eagle_ext.measure.bench.summary import acceptance_length_of, pooled

HYSTERESIS = 1.01  # another K must promise so much more than that of fewer requests


@dataclass(frozen=True, slots=True)
class Point:
    """One K at one load."""

    k: int
    needed: Interval  # acceptance length: step times over those without a draft, paired by round
    length: float | None  # acceptance length that was measured; None where only times were

    @property
    def gain(self) -> float | None:
        """Return tokens per second over those without a draft, as times and acceptance length say."""
        return None if self.length is None else self.length / self.needed.median


Surface = Mapping[tuple[ServedLoad, int], Point]


def surface_of(report: Report) -> Surface:
    """Return every K at every load for which both step times are known.

    The acceptance length is that of all loads of one context: the number of requests does not change it.
    """
    rows = [row for row in report.of("sweep") if row.variant.kind == "held"]
    surface = {}
    for row in rows:
        alike = [one for one in rows if (one.variant, one.context) == (row.variant, row.context)]
        length = acceptance_length_of(*pooled(alike)) if row.variant.k else 1.0
        if row.step_ratio is not None:
            measured = None if report.settings.surface_only else length
            surface[row.load, row.variant.k] = Point(row.variant.k, row.step_ratio, measured)
    return surface


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


def best_fixed(surface: Surface, ks: Sequence[int]) -> int:
    """Return the K above 0 with the highest mean gain over all loads."""
    return max((k for k in ks if k), key=lambda k: mean_gain(_gains(surface, k)))


def best_by_requests(surface: Surface, ks: Sequence[int], levels: Sequence[int]) -> dict[int, int]:
    """Choose a K for each number of requests, by the mean gain over the contexts.

    The K of the level before stays where another one promises no more than HYSTERESIS.
    """
    chosen: dict[int, int] = {}
    for level in sorted(levels):
        gains = {k: mean_gain(_gains(surface, k, level)) for k in ks}
        best = max(gains, key=lambda k: gains[k])
        earlier = next(reversed(chosen.values()), best)
        chosen[level] = earlier if gains[best] <= HYSTERESIS * gains[earlier] else best
    return chosen


def merged_schedule(best: Mapping[int, int]) -> Schedule:
    """Make a schedule as vLLM reads it, `num_speculative_tokens_per_batch_size`.

    Between two measured numbers of requests the K of the larger one holds: there it was shown to pay.
    vLLM carries the last K forward.
    """
    entries: list[tuple[int, int, int]] = []
    first = 1
    for level in sorted(best):
        if entries and entries[-1][2] == best[level]:
            first, *_ = entries.pop()
        entries.append((first, level, best[level]))
        first = level + 1
    return tuple(entries)


def worth_serving(settings: Settings, surface: Surface) -> list[Variant]:
    """List what may be printed; nothing where no K pays at any load, unless it was asked for."""
    (draft,) = settings.drafts
    fixed = best_fixed(surface, settings.ks)
    best = best_by_requests(surface, settings.ks, settings.concurrency)
    served = []
    if any(gain > 1 for gain in _gains(surface, fixed)) or any(best.values()):
        served.append(Variant(kind="ours", draft=draft, k=fixed))
    if any(best.values()) and set(best.values()) != {fixed}:
        schedule = merged_schedule(best)
        served.append(Variant(kind="schedule", draft=draft, k=max(best.values()), schedule=schedule))
    if settings.adaptive:
        served.append(Variant(kind="adaptive", draft=draft, k=max(settings.ks)))
    return served


def choose_served(report: Report) -> TunedChoice:
    """Choose what is slower than no draft at the fewest loads, and of those what gains most.

    No draft is printed where everything is slower at every load, K = 0 in an engine with a draft too.
    """
    # The gains of the closing round.
    measured: dict[Variant, dict[ServedLoad, Interval]] = {}
    for row in report.of("closing"):
        if row.speedup is not None:
            measured.setdefault(row.variant, {})[row.load] = row.speedup
    every = [gain for gains in measured.values() for gain in gains.values()]
    if all(gain.median < 1 for gain in every) and (not every or any(gain.high < 1 for gain in every)):
        return TunedChoice(served=PLAIN, config=config_of(report.settings, PLAIN))
    # The best of them, the first of equals: one K is simpler than a schedule.
    means = {served: gain_over_loads(report, served) for served in measured}
    slower_at = {
        served: [load for load, gain in gains.items() if gain.high < 1]
        for served, gains in measured.items()
    }
    medians = {served: gain.median if gain else 0.0 for served, gain in means.items()}
    best = max(measured, key=lambda served: (-len(slower_at[served]), medians[served]))
    return TunedChoice(
        served=best,
        config=config_of(report.settings, best),
        gain=means[best],
        slower=slower_at[best],
        undecided=[load for load, gain in measured[best].items() if gain.median < 1 <= gain.high],
    )


def _gains(surface: Surface, k: int, level: int | None = None) -> list[float]:
    """List the predicted gains of a K, over all loads or those of one number of requests."""
    return [
        point.gain
        for (load, length), point in surface.items()
        if length == k and level in (None, load.concurrency) and point.gain is not None
    ]
