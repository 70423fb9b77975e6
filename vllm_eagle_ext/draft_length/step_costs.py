# SPDX-License-Identifier: Apache-2.0
"""Keeps what a decode step of each length costs, per bucket of load.

Costs of a bucket are relative to each other: `LoadLevel` tracks how long a step takes now, so that
neither the drift of load within a bucket nor a machine that becomes slower looks like a property of one
length. A bucket keeps its level for a while: the number of requests may cross an edge all the time.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from vllm_eagle_ext.draft_length.load_buckets import Key

RING = 15  # times per length
FEWEST = 3  # times that a straggler among them does not move
CONTRADICTS = 1.5  # times over those before, or under; noise of a quarter hardly reaches it
MOST_BUCKETS = 64
_PRIOR_WEIGHT = 1.0  # neighbouring buckets count as so many times of a bucket's own


class LoadLevel:
    """Tracks seconds per unit of a bucket's cost, from steps of the length in force."""

    ENOUGH = 5

    def __init__(self) -> None:
        self._ring: deque[float] = deque(maxlen=RING)
        self.value = 1.0
        self.is_known = False

    @property
    def is_fresh(self) -> bool:
        """Whether enough steps were timed since the last probe to compare another one with."""
        return len(self._ring) >= self.ENOUGH

    def renew(self) -> None:
        """Start over, with the present value until there is a new one: a machine that was slow for a
        while must not make what is timed next look fast."""
        self._ring.clear()

    def forget(self) -> None:
        self._ring.clear()
        self.is_known = False

    def define(self) -> None:
        """Let one unit of cost be one second, where nothing was measured before."""
        self.value, self.is_known = 1.0, True

    def add(self, seconds: float, cost: float) -> None:
        self._ring.append(seconds / cost)
        if self.is_fresh:
            self.value, self.is_known = typical(self._ring), True


class Timed(NamedTuple):
    """One step's cost, and when it was timed."""

    cost: float
    step: int


@dataclass(slots=True)
class StepCosts:
    """Holds the costs of one bucket: a ring per length, and what neighbouring buckets suggest."""

    prior: dict[int, float] = field(default_factory=dict)
    rings: dict[int, deque[Timed]] = field(default_factory=dict)
    known: dict[int, float] = field(default_factory=dict)  # the estimates, kept up to date
    timed_at: dict[int, int] = field(default_factory=dict)  # the last step that was timed
    level: LoadLevel = field(default_factory=LoadLevel)
    learning: int = 0  # steps left in which the length in force is timed itself, at the level there is
    measured: int = 0  # steps of the length in force
    left_at: int = 0  # the last step in the bucket
    in_force: int | None = None  # the length that was chosen last by times that are all of the bucket

    def __post_init__(self) -> None:
        self.known.update(self.prior)

    def samples(self, length: int) -> int:
        return len(self.rings.get(length, ()))

    def is_fresh(self, length: int, count: int, since: int) -> bool:
        """Find out whether the last `count` times are all of steps from `since` on."""
        return self.samples(length) >= count and self.rings[length][-count].step >= since

    def add(self, length: int, cost: float, step: int) -> None:
        self.timed_at[length] = step
        self.rings.setdefault(length, deque(maxlen=RING)).append(Timed(cost, step))
        self._estimate(length)

    def overrule(self, length: int, fresh: int) -> None:
        """Forget times that the last `fresh` contradict: the load, or the machine, was another one."""
        costs = [timed.cost for timed in self.rings[length]]
        if fresh < FEWEST or len(costs) <= fresh:
            return
        before, now = typical(costs[:-fresh]), typical(costs[-fresh:])
        if max(before, now) > CONTRADICTS * min(before, now):
            self.rings[length] = deque(list(self.rings[length])[-fresh:], maxlen=RING)
            self._estimate(length)

    def _estimate(self, length: int) -> None:
        own, prior = typical(timed.cost for timed in self.rings[length]), self.prior.get(length)
        weight = 0.0 if prior is None else _PRIOR_WEIGHT / (_PRIOR_WEIGHT + self.samples(length))
        logarithm = (1.0 - weight) * math.log(own) + (weight * math.log(prior) if prior else 0.0)
        self.known[length] = math.exp(logarithm)


class CostTable:
    """Holds the buckets that were used last; a new one starts from its neighbours."""

    def __init__(self, menu: Sequence[int]) -> None:
        self._menu = tuple(menu)
        self._buckets: OrderedDict[Key, StepCosts] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def enter(self, key: Key) -> StepCosts:
        if key not in self._buckets:
            self._buckets[key] = StepCosts(prior=self._interpolated(key))
        self._buckets.move_to_end(key)
        while len(self._buckets) > MOST_BUCKETS:
            self._buckets.popitem(last=False)
        return self._buckets[key]

    def _interpolated(self, key: Key) -> dict[int, float]:
        """Average the logarithms of relative costs, near buckets and those with more times first.

        Only buckets in which every length was timed count: what others know was itself interpolated.
        Until there is one, what was timed in the last one is taken over.
        """
        timed = {
            other: costs
            for other, costs in self._buckets.items()
            if all(costs.samples(k) and costs.known[k] > 0.0 for k in self._menu)
        }
        if not timed:
            last = next(reversed(self._buckets.values()), None)
            return {k: last.known[k] for k in last.rings} if last else {}
        sums, weights = dict.fromkeys(self._menu, 0.0), dict.fromkeys(self._menu, 0.0)
        for other, costs in timed.items():
            scale = _geometric_mean(costs.known[k] for k in self._menu)
            distance = abs(other[0] - key[0]) + abs(other[1] - key[1])
            for k in self._menu:
                weight = costs.samples(k) / distance**3
                sums[k] += weight * math.log(costs.known[k] / scale)
                weights[k] += weight
        return {k: math.exp(sums[k] / weights[k]) for k in self._menu}


def _geometric_mean(values: Iterable[float]) -> float:
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))


def typical(values: Iterable[float]) -> float:
    """Average the middle half: a straggler does not move it, and noise moves it less than a median."""
    ordered = sorted(values)
    left_out = (len(ordered) + 1) // 4  # at each end
    return fmean(ordered[left_out : len(ordered) - left_out])
