# SPDX-License-Identifier: Apache-2.0
"""Decides when another length than the one in force is run for a few steps, and which.

A probe times steps, whose drafts also tell of acceptance. Where nothing is drafted and a length's times
are fresh, its drafts alone are missing, of which many requests yield enough in one or two steps. What a
probe is expected to lose, in time, is paid from a credit that grows with every other step. All counts
are steps; prices and credit are in steps of the length in force.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from vllm_eagle_ext.draft_length.load_buckets import Key
from vllm_eagle_ext.draft_length.step_costs import StepCosts

MEASURED = 6  # steps of a probe; the first after a change of K is not measured
MEASURED_FIRST = 3  # of a length that was never timed in the bucket
LONGEST = 16  # steps, where some are not measured
OUTCOMES = 16  # drafts that tell whether acceptance has changed
APART = 25  # steps between probes
APART_FAILED = 10  # steps, doubled by each probe in a row in which nothing was timed ..
MOST_FAILURES = 6  # .. so often
STALE = 1000  # steps after which a length's times may be those of another world, and are renewed
SHARE = 0.01  # of all steps' tokens, what probes may lose against the length in force
MOST_LOST = 3.5  # after which a probe for times ends, as soon as one step of it was timed
_LEAST_LOST = 0.03  # of a step; its own estimate may be wrong
_FIRST_CREDIT, _MOST_CREDIT = 3.0, 7.0  # the first times of an engine are its worst


@dataclass(slots=True)
class Probe:
    """Counts down what is left of a probe, and what it loses."""

    length: int
    to_measure: int
    steps_left: int
    purpose: Literal["first times", "times", "acceptance"]
    lost: float = 0.0
    measured: int = 0

    @property
    def is_over(self) -> bool:
        return self.measured == self.to_measure or (self.purpose == "times" and self.lost >= MOST_LOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeCase:
    """What a probe is chosen by."""

    costs: StepCosts
    bucket: Key
    in_force: int
    tokens: Callable[[int], float]  # of a step of a length
    step: int

    def lost(self, length: int, cost: float) -> float:
        """Return what a step of the length loses, in steps of the one in force: its time less its
        tokens."""
        in_force = self.costs.known.get(self.in_force)
        if in_force is None:  # a probe that goes on in another bucket
            return _LEAST_LOST
        gained = self.tokens(length) / self.tokens(self.in_force)
        return max(cost / in_force - gained, _LEAST_LOST)


class Probes:
    """Keeps the credit, and the probe that runs."""

    def __init__(self, menu: Sequence[int]) -> None:
        self.running: Probe | None = None
        self._menu = tuple(menu)
        self._credit = _FIRST_CREDIT
        self._saving_for: int | None = None  # a length; cheaper ones must not spend it meanwhile
        self._ended_at = 0
        self._failures = 0  # probes in a row in which nothing was timed

    def save(self) -> None:
        """Take note of a step of the length in force."""
        self._credit = min(self._credit + SHARE, _MOST_CREDIT)

    def end(self, step: int) -> None:
        probe, self.running, self._ended_at = self.running, None, step
        if probe is not None and probe.purpose != "acceptance" and not probe.measured:
            self._failures = min(self._failures + 1, MOST_FAILURES)

    def measure(self, probe: Probe, lost: float) -> None:
        """Take note of a step of it that was timed; the one before the first was not."""
        probe.lost += lost if probe.measured else 2 * lost
        self._failures = 0
        probe.measured += 1

    def consider(self, now: ProbeCase) -> None:
        """Begin a probe if one is due and its price is saved up."""
        length, apart = self._next(now)
        if self._failures:
            apart = max(apart, APART_FAILED << self._failures)
        price = self._price(length, now)
        if now.step - self._ended_at < apart or self._credit < price:
            return
        self._credit -= price
        self._saving_for = None
        self.running = self._plan(length, now)

    def _next(self, now: ProbeCase) -> tuple[int, int]:
        """Return the length to probe, and how many steps after the last probe."""
        costs, others = now.costs, [k for k in self._menu if k != now.in_force]
        if untimed := [k for k in others if not costs.samples(k)]:
            # No draft bounds what can be lost; then what nothing is known of, the longest first.
            return min(untimed, key=lambda k: (k > 0, k in costs.known, -k)), 0

        def weight(k: int) -> float:
            # Ages weighed by 1 / price lose least, by its root they are youngest altogether.
            return (now.step - costs.timed_at.get(k, 0)) / self._price(k, now) ** 0.75

        if self._saving_for not in others:
            self._saving_for = max(others, key=weight)
        return self._saving_for, APART

    def _plan(self, length: int, now: ProbeCase) -> Probe:
        if not now.costs.samples(length):
            measured = MEASURED_FIRST if length in now.costs.known else MEASURED
            return Probe(length, measured, LONGEST, "first times")
        if now.in_force or not now.costs.is_fresh(length, MEASURED, now.step - STALE):
            return Probe(length, MEASURED, LONGEST, "times")
        measured = min(-(-OUTCOMES // (1 << now.bucket[0])), MEASURED)
        return Probe(length, measured, 1 + measured, "acceptance")

    def _price(self, length: int, now: ProbeCase) -> float:
        """Return what a probe is expected to lose, at most what one ends at: the estimate may be wrong,
        and a length that is believed hopeless must have its turn."""
        plan = self._plan(length, now)
        steps = 1 + plan.to_measure
        if plan.purpose == "first times":
            return steps * _LEAST_LOST  # what other loads suggest must not keep it from being tried
        lost = now.lost(length, now.costs.known[length])
        return min(steps * lost, MOST_LOST)
