# SPDX-License-Identifier: Apache-2.0
"""Chooses the K with the highest goodput, n * E(K) / T(K), by what was measured in this engine.

n is the number of requests, the same for all K; E(K) the expected tokens of a step and request, from
acceptance (Leviathan et al. 2023, with a rate per position); T(K) the time of a decode step. Nothing is
fitted to a machine: a length's time is known from running it, now and then, for a few steps. All counts
are steps, all times seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_eagle_ext.draft_length.load_buckets import Key, bucket_of, stays_in
from vllm_eagle_ext.draft_length.position_acceptance import PositionAcceptance
from vllm_eagle_ext.draft_length.prompt_cost import PromptCost
from vllm_eagle_ext.draft_length.step_costs import RING, CostTable, LoadLevel

HYSTERESIS = 1.01  # another length must promise so much more goodput
DECIDE_EVERY = 4  # measured steps
PROBE_MEASURED = 6  # measured steps of a probe; the first after a change of K is not measured
PROBE_LONGEST = 16  # steps, where some are not measured
PROBE_APART = 25  # steps between probes
PROBE_APART_UNTIMED = 10  # steps before a length that was never timed in the bucket
MOST_FAILURES = 6  # probes without a time, each of which doubles the wait for the next one
LEVEL_LASTS = 100  # steps in other buckets after which a bucket's level of load is measured anew
STALE = 1000  # steps after which a length's times may be those of another world
WARM_UP = 16  # timed steps of a young engine that are not counted
PROBE_SHARE = 0.01  # of all steps, what probes may lose against the length in force
_LEAST_LOSS, _MOST_LOSS = 0.03, 0.5  # of a probe; its own estimate may be wrong
_FIRST_CREDIT, _MOST_CREDIT = 3.0, 10.0  # steps; the first times of an engine are its worst


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Holds what is known of one length in the present bucket."""

    length: int
    seconds: float | None  # of a decode step; None: not known
    tokens: float  # expected, of a step and request


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Describes a change of the length in force."""

    before: int
    after: int
    bucket: Key
    figures: tuple[Figure, ...]


@dataclass(slots=True)
class _Probe:
    length: int
    measured_left: int = PROBE_MEASURED
    steps_left: int = PROBE_LONGEST


class DraftLengthController:
    """Chooses the length of the next step's drafts; starts with the longest.

    Args:
        menu: lengths to choose from, 0 for no draft.
    """

    def __init__(self, menu: Sequence[int]) -> None:
        self.menu = tuple(sorted(set(menu)))
        self.in_force = self.menu[-1]
        self.last_change: Change | None = None
        self.acceptance = PositionAcceptance(self.menu)
        self._table = CostTable(self.menu)
        self._prompts = PromptCost()
        self._bucket = bucket_of(0, 0)
        self._costs = self._table.enter(self._bucket)
        self._probe: _Probe | None = None
        self._warming_up = WARM_UP
        self._credit = _FIRST_CREDIT
        self._step = 0
        self._last_probe = 0
        self._failures = 0  # probes in a row in which nothing was timed

    @property
    def is_probing(self) -> bool:
        return self._probe is not None

    def next_length(self, requests: int, context: int) -> int:
        """Return the number of tokens to draft in the step that is being scheduled.

        Args:
            requests: that the step schedules.
            context: their tokens of context together.
        """
        self._step += 1
        if not stays_in(self._bucket, requests, context):
            self._enter(bucket_of(requests, context))
        if self._probe is not None:
            self._probe.steps_left -= 1
            if self._probe.steps_left >= 0:
                return self._probe.length
            if self._probe.measured_left == PROBE_MEASURED:
                self._failures = min(self._failures + 1, MOST_FAILURES)
            self._end_probe()
        self._credit = min(self._credit + PROBE_SHARE, _MOST_CREDIT)
        if not self.in_force:
            self.acceptance.rest()
        return self.in_force

    def observe_drafts(self, length: int, outcomes: Sequence[tuple[int, int]]) -> None:
        """Take what became of the drafts of one step; see `PositionAcceptance.observe`."""
        if outcomes:
            self.acceptance.observe(length, outcomes)

    def observe_step(
        self, requests: int, context: int, length: int, seconds: float, prompt_tokens: int = 0
    ) -> None:
        """Take the time of a step that drafted and verified `length` tokens.

        Args:
            prompt_tokens: rows of the step that are neither drafts nor the one row of each request.
        """
        if seconds <= 0.0 or not stays_in(self._bucket, requests, context):
            return
        if self._warming_up:
            self._warming_up -= 1
            return
        self._prompts.observe(self._bucket, length, prompt_tokens, seconds)
        seconds = self._prompts.without_prompts(prompt_tokens, seconds)
        if self._probe is not None and length == self._probe.length:
            self._time_probe(self._probe, seconds)
        elif self._probe is None and length == self.in_force:
            self._time_in_force(seconds)

    def figures(self) -> tuple[Figure, ...]:
        """Return what is known of every length in the present bucket."""
        level, known = self._costs.level.value, self._costs.known
        return tuple(
            Figure(
                length=k,
                seconds=known[k] * level if k in known else None,
                tokens=self.acceptance.tokens(k),
            )
            for k in self.menu
        )

    def draft_gain(self) -> float:
        """Goodput of the best length but 0 over that of 0; 0 where either is not known."""
        drafted = max(self._goodput(k) for k in self.menu if k)
        plain = self._goodput(0) if self.menu[0] == 0 else 0.0
        return drafted / plain if plain else 0.0

    def _enter(self, key: Key) -> None:
        """Go on in another bucket, at the level of load that it had if that was not long ago.

        A probe goes on, too, where its times can be compared: the number of requests may cross an edge
        in every step.
        """
        self._costs.left_at = self._step
        self._bucket = key
        self._costs = self._table.enter(key)
        if self._step - self._costs.left_at > LEVEL_LASTS:
            self._costs.learning = 0
            self._costs.level.forget()
        if self._probe is not None and not self._costs.level.is_known:
            self._end_probe()
        self._decide()

    def _time_in_force(self, seconds: float) -> None:
        costs = self._costs
        if self.in_force not in costs.known and not costs.level.is_known:
            costs.level.define()
            costs.learning = LoadLevel.ENOUGH
        if costs.learning or self.in_force not in costs.known:
            costs.learning = max(costs.learning - 1, 0)
            self._add(self.in_force, seconds)
        else:
            costs.level.add(seconds, costs.known[self.in_force])
        costs.measured += 1
        if costs.measured % DECIDE_EVERY == 0 and costs.level.is_fresh:
            self._decide()
            self._consider_probe()

    def _add(self, length: int, seconds: float) -> None:
        self._costs.add(length, seconds / self._costs.level.value, self._step)

    def _time_probe(self, probe: _Probe, seconds: float) -> None:
        self._failures = 0
        self._add(probe.length, seconds)
        probe.measured_left -= 1
        if not probe.measured_left:
            self._end_probe()
            self._decide()

    def _end_probe(self) -> None:
        self._probe, self._last_probe = None, self._step
        self._costs.level.renew()

    def _goodput(self, length: int) -> float:
        """Tokens of a request per unit of cost; 0 where no step was timed."""
        cost = self._costs.known.get(length)
        return self.acceptance.tokens(length) / cost if cost else 0.0

    def _decide(self) -> None:
        if self.in_force not in self._costs.known:
            return
        best = max(self.menu, key=self._goodput)
        if best == self.in_force or self._goodput(best) <= HYSTERESIS * self._goodput(self.in_force):
            return
        self.last_change = Change(
            before=self.in_force, after=best, bucket=self._bucket, figures=self.figures()
        )
        self.in_force = best
        self._costs.learning = RING if self._costs.level.is_known else 0

    def _consider_probe(self) -> None:
        unknown = [k for k in self.menu if k not in self._costs.known]
        since = self._step - self._last_probe
        if unknown:
            if not self._failures or since >= PROBE_APART_UNTIMED << self._failures:
                self._begin(max(unknown))
        elif since >= PROBE_APART_UNTIMED:
            self._probe_affordable()

    def _probe_affordable(self) -> None:
        """Probe the length whose times are old for what a probe of it loses."""
        timed_at = self._costs.timed_at
        length = max(
            (k for k in self.menu if k != self.in_force),
            # Ages weighed by 1 / price lose least, by its root they are youngest altogether.
            key=lambda k: (self._step - timed_at.get(k, 0)) / self._price(k) ** 0.75,
        )
        apart = PROBE_APART if length in timed_at else PROBE_APART_UNTIMED
        if self._step - self._last_probe >= apart and self._credit >= self._price(length):
            self._credit -= self._price(length)
            self._begin(length)

    def _begin(self, length: int) -> None:
        self._probe = _Probe(length)
        if self._step - self._costs.timed_at.get(length, 0) > STALE:
            self._costs.expect(length, PROBE_MEASURED)

    def _price(self, length: int) -> float:
        """Steps' worth of tokens that a probe is expected to lose."""
        lost = 1.0 - self._goodput(length) / self._goodput(self.in_force)
        return (1 + PROBE_MEASURED) * min(max(lost, _LEAST_LOSS), _MOST_LOSS)
