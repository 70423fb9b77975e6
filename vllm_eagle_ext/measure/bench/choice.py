# SPDX-License-Identifier: Apache-2.0
"""What follows from a sweep: the best K, the best schedule by number of requests, and what to print.

Predicted gains choose what is served in the closing round; its measured ones choose what is printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vllm_eagle_ext.measure.bench.keywords import config_of, no_draft_or
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
from vllm_eagle_ext.measure.bench.surface import Surface, gain_over_loads, mean_gain, surface_of
from vllm_eagle_ext.measure.intervals import Interval

HYSTERESIS = 1.01  # another K must promise so much more than that of fewer requests
Gains = Mapping[ServedLoad, Interval]


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
    best = max(measured, key=lambda one: (-len(slower_at(measured[one])), _median(gains[one])))
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


def _median(gain: Interval | None) -> float:
    return gain.median if gain else 0.0


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
