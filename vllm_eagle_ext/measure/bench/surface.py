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

from vllm_eagle_ext.measure.bench.engines import config_of, no_draft_or
from vllm_eagle_ext.measure.bench.results import (
    PLAIN,
    Report,
    Row,
    Schedule,
    ServedLoad,
    Settings,
    TunedChoice,
    Variant,
)
from vllm_eagle_ext.measure.bench.summary import acceptance_length_of, pooled
from vllm_eagle_ext.measure.intervals import Interval, median_interval

HYSTERESIS = 1.01  # another K must promise so much more than that of fewer requests
_BISECTIONS = 50
Gains = Mapping[ServedLoad, Interval]


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
    found: list[tuple[int, int, int]] = []
    first = 1
    for level in sorted(best):
        if found and found[-1][2] == best[level]:
            found[-1] = (found[-1][0], level, best[level])
        else:
            found.append((first, level, best[level]))
        first = level + 1
    return tuple(found)


def worth_serving(settings: Settings, surface: Surface) -> list[Variant]:
    """List what may be printed; nothing where no K pays at any load, unless it was asked for."""
    (draft,) = settings.drafts
    fixed = best_fixed(surface, settings.ks)
    best = best_by_requests(surface, settings.ks, settings.concurrency)
    found = []
    if any(gain > 1 for gain in _gains(surface, fixed)) or any(best.values()):
        found.append(Variant(kind="ours", draft=draft, k=fixed))
    if any(best.values()) and set(best.values()) != {fixed}:
        found.append(_scheduled(draft, merged_schedule(best)))
    if settings.adaptive:
        found.append(Variant(kind="adaptive", draft=draft, k=max(settings.ks)))
    return found


def choose_served(report: Report) -> TunedChoice:
    """Choose what is slower than no draft at the fewest loads, and of those what gains most.

    No draft is printed where everything is slower at every load, K = 0 in an engine with a draft too.
    """
    rows = [row for row in report.of("closing") if row.speedup]
    measured: dict[Variant, dict[ServedLoad, Interval]] = {}
    for row in rows:
        assert row.speedup is not None
        measured.setdefault(row.variant, {})[row.load] = row.speedup
    if not measured or _loses_everywhere(rows):
        return TunedChoice(served=PLAIN, config=config_of(report.settings, PLAIN))
    gains = {served: gain_over_loads(report, served) for served in measured}
    # The first of equals: one K is simpler than a schedule.
    medians = {served: gain.median if gain else 0.0 for served, gain in gains.items()}
    best = max(measured, key=lambda one: (-len(slower_at(measured[one])), medians[one]))
    slower = slower_at(measured[best])
    zero = _with_zero(report, best, measured[best], slower)
    return TunedChoice(
        served=best,
        config=config_of(report.settings, best),
        gain=gains[best],
        slower=slower,
        undecided=[load for load, gain in measured[best].items() if gain.median < 1 <= gain.high],
        with_zero=config_of(report.settings, no_draft_or(zero)) if zero else None,
    )


def slower_at(gains: Gains) -> list[ServedLoad]:
    """List the loads at which the whole interval of the gain lies below 1."""
    return [load for load, gain in gains.items() if gain.high < 1]


def _loses_everywhere(rows: Sequence[Row]) -> bool:
    """Say whether nothing gains at any load, and something is slower by more than the interval."""
    found = [row.speedup for row in rows if row.speedup]
    return all(gain.median < 1 for gain in found) and any(gain.high < 1 for gain in found)


def _with_zero(
    report: Report, served: Variant, gains: Gains, slower: Sequence[ServedLoad]
) -> Variant | None:
    """Return the printed lengths, with 0 at the numbers of requests where that is less slow."""
    if served.kind == "adaptive":
        return None
    surface = surface_of(report)
    own = {level: served.k_at(level) or 0 for level in report.settings.concurrency}
    levels = dict(own)
    for level in {load.concurrency for load in slower}:
        now = mean_gain(gains[load].median for load in slower if load.concurrency == level)
        if mean_gain(_gains(surface, 0, level)) > now:
            levels[level] = 0
    return _scheduled(str(served.draft), merged_schedule(levels)) if levels != own else None


def _scheduled(draft: str, schedule: Schedule) -> Variant:
    return Variant(kind="schedule", draft=draft, k=max(k for _, _, k in schedule), schedule=schedule)


def _gains(surface: Surface, k: int, level: int | None = None) -> list[float]:
    """List the predicted gains of a K, over all loads or those of one number of requests."""
    return [
        point.gain
        for (load, length), point in surface.items()
        if length == k and level in (None, load.concurrency) and point.gain is not None
    ]
