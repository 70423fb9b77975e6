# SPDX-License-Identifier: Apache-2.0
"""What follows from the cells of a load: rates, ratios within a round with their intervals, goals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from benchmarks.draft_lengths.lengths_result import AUTO, Clock, LengthsResult, LoadShape
from benchmarks.draft_lengths.tiny_pairs import OVER_BEST, PAIRS
from vllm_eagle_ext.measure.intervals import Interval, median_interval, paired
from vllm_eagle_ext.measure.tune.results import NONE, ServedConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSummary:
    """One load by one clock. Ratios are those of tokens per second."""

    load: LoadShape
    rates: dict[ServedConfig, Interval]  # tokens per second
    over_none: dict[ServedConfig, Interval]
    best: ServedConfig  # the K with the highest median over all rounds
    full: ServedConfig  # the largest K
    auto_over_best: Interval
    auto_over_full: Interval
    first_over_best: float | None  # the first steps of "auto", over the best K of the same round
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
    piece_s = result.piece_s
    cells = [cell for cell in result.cells if cell.load == load]
    rates: dict[ServedConfig, dict[int, float]] = {}
    for cell in cells:
        if not cell.is_first:
            rates.setdefault(cell.served, {})[cell.round] = cell.rate(clock, piece_s)
    held = result.settings.held
    best = max(held, key=lambda one: median(rates[one].values()))
    first = next((cell for cell in cells if cell.is_first), None)
    auto = [cell for cell in cells if cell.served == AUTO and not cell.is_first]
    return LoadSummary(
        load=load,
        rates={served: median_interval(list(found.values())) for served, found in rates.items()},
        over_none={served: _ratio(found, rates[NONE]) for served, found in rates.items()},
        best=best,
        full=held[-1],
        auto_over_best=_ratio(rates[AUTO], rates[best]),
        auto_over_full=_ratio(rates[AUTO], rates[held[-1]]),
        first_over_best=first.rate(clock, piece_s) / rates[best][first.round] if first else None,
        auto_length=sum(one.drafted for one in auto) / sum(one.decoded for one in auto),
    )


def goals_of(pair: str, found: LoadSummary) -> Iterator[Goal]:
    """What issue 17 asks for at this load."""
    least = PAIRS[pair].over_none
    yield Goal('"auto" over the best K, lower end', found.auto_over_best.low, OVER_BEST)
    yield Goal('"auto" over no draft, lower end', found.over_none[AUTO].low, least)
    if found.load.phases == [1]:
        # A fixed K is today's speed-up; "auto" may be it, but for what the interval leaves open.
        yield Goal('"auto" over the largest K, upper end', found.auto_over_full.high, 1.0)


def accepted_tokens(result: LengthsResult) -> tuple[float, float]:
    """Accepted tokens of a draft of the largest K, of greedy and of sampled prompts, all loads."""
    cells = [cell for cell in result.cells if cell.served == result.settings.held[-1]]
    greedy, sampled = (
        sum(tokens for tokens, _ in found) / sum(steps for _, steps in found) - 1
        for found in ([cell.greedy for cell in cells], [cell.sampled for cell in cells])
    )
    return greedy, sampled


def _ratio(values: dict[int, float], base: dict[int, float]) -> Interval:
    found = paired(values, base)
    assert found is not None  # all variants take turns in each round
    return found
