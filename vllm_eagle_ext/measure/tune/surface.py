# SPDX-License-Identifier: Apache-2.0
"""The break-even surface: the acceptance length from which a draft pays, at each load.

A step that drafts and verifies K tokens takes T(K), one without a draft T(0). With an acceptance length
E, tokens per step and request, drafting yields E / T(K) where decoding alone yields 1 / T(0): it pays
where E is above T(K) / T(0) (Leviathan et al. 2023, section 3.3, with measured times in place of a cost
ratio). Times hardly depend on which tokens are accepted, so that the surface holds for any draft of the
same shape, also for one that is yet to be trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from vllm_eagle_ext.measure.intervals import Interval, paired
from vllm_eagle_ext.measure.tune.results import NONE, Cell, ServedConfig, ServedLoad

_BISECTIONS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One K at one load."""

    load: ServedLoad
    k: int
    needed: Interval  # acceptance length: step times over those without a draft, paired by round
    length: float | None  # acceptance length that was measured; None where only times were
    needed_rate: float | None  # the same at each position; None: not even drafts without a fault pay

    @property
    def gain(self) -> float | None:
        """Tokens per second over those without a draft, as times and acceptance length say."""
        return None if self.length is None else self.length / self.needed.median


Surface = Mapping[tuple[ServedLoad, int], Point]


def surface_of(cells: Sequence[Cell], *, with_lengths: bool = True) -> Surface:
    """Every K at every load for which both step times are known.

    The acceptance length is that of all loads of one context: the number of requests does not change it.

    Args:
        cells: of a sweep.
    """
    times = _by_round(cells, lambda cell: cell.step_s)
    lengths = acceptance_lengths(cells) if with_lengths else {}
    found = {}
    for (served, load), own in times.items():
        needed = paired(own, times.get((NONE, load), {})) if served.name == "held" else None
        if needed is not None:
            found[load, served.k] = Point(
                load=load, k=served.k, needed=needed,
                length=lengths.get((served.k, load.context)),
                needed_rate=rate_of(needed.median, served.k),
            )  # fmt: skip
    return found


def acceptance_lengths(cells: Iterable[Cell]) -> dict[tuple[int, int], float]:
    """Tokens of a step and request, by K and context, over all that was decoded with that K."""
    tokens: dict[tuple[int, int], float] = {}
    steps: dict[tuple[int, int], float] = {}
    for cell in cells:
        if cell.served.name == "held":
            key = cell.served.k, cell.load.context
            tokens[key] = tokens.get(key, 0) + cell.tokens
            steps[key] = steps.get(key, 0) + cell.steps * cell.load.requests
    return {key: tokens[key] / steps[key] for key in tokens}


def expected_length(rate: float, k: int) -> float:
    """Acceptance length of K tokens of which each is accepted with this probability, where all before
    it were: 1 + a + a^2 + .. + a^K (Leviathan et al. 2023, equation 1)."""
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


def rates_by_position(cells: Iterable[Cell], k: int) -> list[float]:
    """The share of all drafts of K tokens whose token at each position was accepted."""
    own = [cell for cell in cells if cell.served.name == "held" and cell.served.k == k]
    drafts = sum(cell.drafts for cell in own)
    if not drafts:
        return []
    return [
        sum(cell.accepted[position] for cell in own if position < len(cell.accepted)) / drafts
        for position in range(k)
    ]


def gains_of(cells: Sequence[Cell]) -> dict[tuple[ServedConfig, ServedLoad], Interval]:
    """Tokens per second over those without a draft, paired by round."""
    rates = _by_round(cells, lambda cell: cell.tokens_per_s)
    found = {}
    for (served, load), own in rates.items():
        gain = paired(own, rates.get((NONE, load), {}))
        if served != NONE and gain is not None:
            found[served, load] = gain
    return found


def mean_gain(gains: Iterable[float]) -> float:
    """Geometric mean; 0 of none."""
    logs = [math.log(gain) for gain in gains]
    return math.exp(sum(logs) / len(logs)) if logs else 0.0


def _by_round(
    cells: Sequence[Cell], value: Callable[[Cell], float]
) -> dict[tuple[ServedConfig, ServedLoad], dict[int, float]]:
    found: dict[tuple[ServedConfig, ServedLoad], dict[int, float]] = {}
    for cell in cells:
        found.setdefault((cell.served, cell.load), {})[cell.round] = value(cell)
    return found
