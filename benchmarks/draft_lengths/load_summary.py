# SPDX-License-Identifier: Apache-2.0
"""What follows from the cells of a load: rates and ratios by start, their intervals, goals.

A start of the engines is one sample: what "auto" has learnt and how fast a process is last as long as it
does, so that rounds within it say nothing about either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from benchmarks.draft_lengths.lengths_result import (
    AUTO,
    Clock,
    LengthsCell,
    LengthsResult,
    LengthsSettings,
    LoadShape,
)
from benchmarks.draft_lengths.tiny_pairs import OVER_BEST, PAIRS
from vllm_eagle_ext.measure.intervals import Interval, median_interval, paired
from vllm_eagle_ext.measure.tune.results import NONE, ServedConfig

Rates = Mapping[ServedConfig, Mapping[int, float]]  # tokens per second, by start


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSummary:
    """One load by one clock. Ratios are those of tokens per second within a start."""

    load: LoadShape
    rates: dict[ServedConfig, Interval]  # tokens per second
    over_none: dict[ServedConfig, Interval]
    best: dict[int, ServedConfig]  # the K with the highest rate in the other starts, by start
    best_rate: Interval
    best_over_none: Interval
    full: ServedConfig  # the largest K
    auto_over_best: Interval
    auto_over_full: Interval
    again: Interval  # one K held by the engine of "auto", over the same K in the engine of each K
    auto_length: float  # drafted tokens of a step and request, the mean


@dataclass(frozen=True, slots=True)
class Goal:
    """Holds where `least` is not above what is judged."""

    what: str
    judged: float
    least: float

    @property
    def holds(self) -> bool:
        return self.judged >= self.least


def summary_of(result: LengthsResult, load: LoadShape, clock: Clock) -> LoadSummary:
    """Summarise a load that was measured."""
    cells = [cell for cell in result.cells if cell.load == load]
    rates, held = rates_of(cells, clock, result.piece_s), result.settings.held
    best = {start: best_of(held, rates, without=start) for start in rates[NONE]}
    best_rates = {start: rates[one][start] for start, one in best.items()}
    auto = [cell for cell in cells if cell.served == AUTO]
    return LoadSummary(
        load=load,
        rates={served: median_interval(list(found.values())) for served, found in rates.items()},
        over_none={served: _ratio(found, rates[NONE]) for served, found in rates.items()},
        best=best,
        best_rate=median_interval(list(best_rates.values())),
        best_over_none=_ratio(best_rates, rates[NONE]),
        full=held[-1],
        auto_over_best=_ratio(rates[AUTO], best_rates),
        auto_over_full=_ratio(rates[AUTO], rates[held[-1]]),
        again=_again(cells, rates, clock, result.piece_s),
        auto_length=sum(one.drafted for one in auto) / sum(one.decoded for one in auto),
    )


def rates_of(cells: Collection[LengthsCell], clock: Clock, piece_s: float) -> Rates:
    """Tokens by the time of all rounds of a start; K held a second time is left out.

    Args:
        piece_s: of reference work, the speed at which times are told.
    """
    sums: dict[ServedConfig, dict[int, tuple[float, float]]] = {}
    for cell in cells:
        if not cell.again:
            starts = sums.setdefault(cell.served, {})
            tokens, seconds = starts.get(cell.start, (0.0, 0.0))
            starts[cell.start] = tokens + cell.tokens, seconds + cell.seconds(clock, piece_s)
    return {
        served: {start: tokens / seconds for start, (tokens, seconds) in starts.items()}
        for served, starts in sums.items()
    }


def best_of(held: Sequence[ServedConfig], rates: Rates, *, without: int | None = None) -> ServedConfig:
    """Choose the K with the highest rate, the geometric mean over the starts.

    Args:
        without: a start that has no say, since the choice is judged by it: the highest of several
            figures is too high by its error.
    """
    return max(held, key=lambda one: geometric_mean(_but(rates[one], without)))


def goals_of(settings: LengthsSettings, found: LoadSummary) -> Iterator[Goal]:
    """The goals at this load, behind what could be shown of a perfect "auto"."""
    yield Goal("one K in two engines, lower end", found.again.low, OVER_BEST)
    yield Goal('"auto" over the best K, lower end', found.auto_over_best.low, OVER_BEST)
    least = PAIRS[settings.pair].over_none
    yield Goal('"auto" over no draft, lower end', found.over_none[AUTO].low, least)
    if found.load.phases == [1] and not settings.sampled:  # today's speed-up is that of greedy texts
        yield Goal('"auto" over the largest K, lower end', found.auto_over_full.low, OVER_BEST)


def accepted_tokens(result: LengthsResult) -> tuple[float | None, float | None]:
    """Accepted tokens of a draft of the largest K, of greedy and of sampled prompts, all loads."""
    cells = [cell for cell in result.cells if cell.served == result.settings.held[-1]]
    return _accepted([cell.greedy for cell in cells]), _accepted([cell.sampled for cell in cells])


def _accepted(found: Collection[tuple[int, int]]) -> float | None:
    steps = sum(steps for _, steps in found)
    return sum(tokens for tokens, _ in found) / steps - 1 if steps else None


def _again(cells: Sequence[LengthsCell], rates: Rates, clock: Clock, piece_s: float) -> Interval:
    """One K may be held twice in one start, and another one in the next."""
    twice = [cell.model_copy(update={"again": False}) for cell in cells if cell.again]
    ratios = {
        start: rate / rates[served][start]
        for served, found in rates_of(twice, clock, piece_s).items()
        for start, rate in found.items()
    }
    return median_interval(list(ratios.values()))


def _but(rates: Mapping[int, float], without: int | None) -> list[float]:
    return [rate for start, rate in rates.items() if start != without]


def _ratio(values: Mapping[int, float], base: Mapping[int, float]) -> Interval:
    found = paired(values, base)
    assert found is not None  # all variants take turns in each start
    return found
