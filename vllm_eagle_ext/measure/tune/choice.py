# SPDX-License-Identifier: Apache-2.0
"""What follows from a sweep: the best K, the best schedule by number of requests, and what to print.

Predicted gains choose what is served in the closing round; its measured ones choose what is printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from vllm_eagle_ext.measure.intervals import Interval
from vllm_eagle_ext.measure.tune.results import NONE, Schedule, ServedConfig, ServedLoad, TuneSettings
from vllm_eagle_ext.measure.tune.surface import mean_gain

HYSTERESIS = 1.01  # another K must promise so much more
Gains = Mapping[tuple[ServedConfig, ServedLoad], Interval]


class HasGain(Protocol):
    """A point of the surface, or a row of its report."""

    @property
    def gain(self) -> float | None: ...


Surface = Mapping[tuple[ServedLoad, int], HasGain]


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedChoice:
    """What is printed, and where it is slower than no draft: by more than the interval, or perhaps."""

    served: ServedConfig
    slower: tuple[ServedLoad, ...] = ()
    undecided: tuple[ServedLoad, ...] = ()  # by the median alone, while the interval reaches 1
    with_zero: Schedule = ()  # K = 0 where it is slower, and less slow; empty: it would not help

    @property
    def exit_code(self) -> int:
        if self.slower:
            return 1
        return 2 if self.undecided else 0


def best_fixed(surface: Surface, ks: Sequence[int]) -> int:
    """The K above 0 with the highest mean gain over all loads."""
    return max(ks, key=lambda k: mean_gain(_gains(surface, k)))


def best_by_requests(surface: Surface, lengths: Sequence[int], levels: Sequence[int]) -> dict[int, int]:
    """K for each number of requests, by the mean gain over the contexts.

    The K of the level before stays where another one promises no more than HYSTERESIS.
    """
    chosen: dict[int, int] = {}
    for level in sorted(levels):
        gains = {k: mean_gain(_gains(surface, k, level)) for k in lengths}
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


def worth_serving(settings: TuneSettings, surface: Surface) -> list[ServedConfig]:
    """What may be printed; nothing where no K pays at any load."""
    fixed = best_fixed(surface, settings.drafted)
    best = best_by_requests(surface, settings.lengths, settings.requests)
    found = []
    if any(gain > 1 for gain in _gains(surface, fixed)) or any(best.values()):
        found.append(ServedConfig(name="fixed", k=fixed))
    if any(best.values()) and set(best.values()) != {fixed}:
        found.append(ServedConfig(name="schedule", schedule=merged_schedule(best)))
    return found + settings.chosen_while_serving


def choose_config(settings: TuneSettings, measured: Gains, surface: Surface) -> TunedChoice:
    """Print what is slower than no draft at the fewest loads, and of those what gains most.

    No draft is printed where everything is slower at every load, K = 0 in an engine with a draft too.

    Args:
        measured: of the closing round; empty where nothing was worth one.
    """
    served = list(dict.fromkeys(one for one, _ in measured))
    if not served or loses_everywhere(measured):
        return TunedChoice(served=NONE)
    best = served[0]
    for one in served[1:]:
        if _rank(one, measured) > _rank(best, measured):
            best = one
    slower = slower_at(best, measured)
    return TunedChoice(
        served=best,
        slower=slower,
        undecided=_undecided_at(best, measured),
        with_zero=_with_zero(settings, best, slower, measured, surface),
    )


def slower_at(served: ServedConfig, measured: Gains) -> tuple[ServedLoad, ...]:
    """Loads at which the whole interval of the gain lies below 1."""
    return tuple(load for (one, load), gain in measured.items() if one == served and gain.high < 1)


def _undecided_at(served: ServedConfig, measured: Gains) -> tuple[ServedLoad, ...]:
    """Loads at which the median lies below 1, and the interval reaches it."""
    return tuple(
        load for (one, load), gain in measured.items() if one == served and gain.median < 1 <= gain.high
    )


def loses_everywhere(measured: Gains) -> bool:
    """Whether nothing gains at any load, and something is slower by more than the interval."""
    found = list(measured.values())
    return all(gain.median < 1 for gain in found) and any(gain.high < 1 for gain in found)


def measured_mean(served: ServedConfig, measured: Gains) -> float:
    return mean_gain(gain.median for (one, _), gain in measured.items() if one == served)


def _rank(served: ServedConfig, measured: Gains) -> tuple[int, float]:
    return -len(slower_at(served, measured)), measured_mean(served, measured)


def _with_zero(
    settings: TuneSettings,
    served: ServedConfig,
    slower: Sequence[ServedLoad],
    measured: Gains,
    surface: Surface,
) -> Schedule:
    """The printed lengths, with 0 at the numbers of requests where that is less slow."""
    if served in settings.chosen_while_serving:
        return ()
    levels = {level: served.k_at(level) or 0 for level in settings.requests}
    for level in {load.requests for load in slower}:
        now = mean_gain(measured[served, load].median for load in slower if load.requests == level)
        if levels[level] and mean_gain(_gains(surface, 0, level)) > now:
            levels[level] = 0
    changed = any(levels[level] != (served.k_at(level) or 0) for level in levels)
    return merged_schedule(levels) if changed else ()


def _gains(surface: Surface, k: int, level: int | None = None) -> list[float]:
    """Predicted gains of a K, over all loads or those of one number of requests."""
    return [
        point.gain
        for (load, length), point in surface.items()
        if length == k and level in (None, load.requests) and point.gain is not None
    ]
