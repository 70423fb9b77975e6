# SPDX-License-Identifier: Apache-2.0
"""Chooses the K with the highest goodput, n * E(K) / T(K), by what was measured in this engine.

n is the number of requests, the same for all K; E(K) the expected tokens of a step and request, from
acceptance (Leviathan et al. 2023, with a rate per position); T(K) the time of a decode step. Nothing is
fitted to a machine: a length's time is known from running it, now and then, for a few steps. All counts
are steps, all times seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from vllm_eagle_ext.draft_length.load_buckets import Key, bucket_of, stays_in
from vllm_eagle_ext.draft_length.position_acceptance import PositionAcceptance
from vllm_eagle_ext.draft_length.probes import Probe, ProbeCase, Probes
from vllm_eagle_ext.draft_length.prompt_cost import PromptCost
from vllm_eagle_ext.draft_length.step_costs import RING, CostTable, LoadLevel

HYSTERESIS = 1.01  # another length must promise so much more goodput
DECIDE_EVERY = 4  # measured steps
LEVEL_LASTS = 100  # steps in other buckets after which a bucket's level of load is measured anew
WARM_UP = 16  # timed steps of a young engine that are not counted
MOST_CHANGES = 16  # that nobody took; the scheduler does in each step


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Holds what is known of one length in the present bucket."""

    length: int
    seconds: float | None  # of a decode step; None: not known
    tokens: float  # expected, of a step and request


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Says that drafting turned off or on for a bucket, since its lengths were all timed last."""

    before: int  # the length that was in force in the bucket
    after: int
    bucket: Key
    figures: tuple[Figure, ...]


class DraftLengthController:
    """Chooses the length of the next step's drafts; starts with the longest.

    Args:
        menu: lengths to choose from, 0 for no draft.
    """

    def __init__(self, menu: Sequence[int]) -> None:
        self.menu = tuple(sorted(set(menu)))
        self.in_force = self.menu[-1]
        self.acceptance = PositionAcceptance(self.menu)
        self._table = CostTable(self.menu)
        self._prompts = PromptCost()
        self._bucket = bucket_of(0, 0)
        self._costs = self._table.enter(self._bucket)
        self._probes = Probes(self.menu)
        self._changes: deque[Change] = deque(maxlen=MOST_CHANGES)
        self._warming_up = WARM_UP
        self._step = 0

    @property
    def is_probing(self) -> bool:
        return self._probes.running is not None

    def next_length(self, requests: int, context: int) -> int:
        """Return the number of tokens to draft in the step that is being scheduled.

        Args:
            requests: that the step schedules.
            context: their tokens of context together.
        """
        self._step += 1
        if not stays_in(self._bucket, requests, context):
            self._enter(bucket_of(requests, context))
        if (probe := self._probes.running) is not None:
            probe.steps_left -= 1
            if probe.steps_left >= 0:
                return probe.length
            self._end_probe()
        self._probes.save()
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
        probe = self._probes.running
        if probe is not None and length == probe.length:
            self._time_probe(probe, seconds)
        elif probe is None and length == self.in_force:
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

    def take_changes(self) -> list[Change]:
        """Return the changes since the last call."""
        taken = list(self._changes)
        self._changes.clear()
        return taken

    def untimed(self) -> int:
        """Return how many lengths were never timed in the present bucket."""
        return sum(not self._costs.samples(k) for k in self.menu)

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
        costs = self._table.enter(key)
        if self._step - costs.left_at > LEVEL_LASTS:
            costs.learning = 0
            costs.level.forget()
        if self._probes.running is not None and not costs.level.is_known:
            self._end_probe()
        self._bucket, self._costs = key, costs
        self._decide()

    def _time_in_force(self, seconds: float) -> None:
        costs = self._costs
        if self.in_force not in costs.known and not costs.level.is_known:
            costs.level.define()
        if costs.level.is_known and not costs.samples(self.in_force):
            costs.learning = max(costs.learning, LoadLevel.ENOUGH)
        if costs.learning:
            costs.learning -= 1
            self._add(self.in_force, seconds)
        else:
            costs.level.add(seconds, costs.known[self.in_force])
        costs.measured += 1
        if costs.measured % DECIDE_EVERY:
            return
        if costs.level.is_fresh:
            self._decide()
        # The level stands still meanwhile, so that what was never timed need not wait.
        is_learnt = costs.learning and costs.samples(self.in_force) >= LoadLevel.ENOUGH
        if costs.level.is_fresh or (is_learnt and self.untimed()):
            self._probes.consider(self._probe_case())

    def _add(self, length: int, seconds: float) -> None:
        self._costs.add(length, seconds / self._costs.level.value, self._step)

    def _time_probe(self, probe: Probe, seconds: float) -> None:
        self._add(probe.length, seconds)
        lost = self._probe_case().lost(probe.length, seconds / self._costs.level.value)
        self._probes.measure(probe, lost)
        if probe.is_over:
            self._costs.overrule(probe.length, probe.measured)
            self._end_probe()
            self._decide()

    def _end_probe(self) -> None:
        self._probes.end(self._step)
        self._costs.level.renew()

    def _probe_case(self) -> ProbeCase:
        return ProbeCase(
            costs=self._costs,
            bucket=self._bucket,
            in_force=self.in_force,
            tokens=self.acceptance.tokens,
            step=self._step,
        )

    def _goodput(self, length: int) -> float:
        """Tokens of a request per unit of cost; 0 where no step was timed."""
        cost = self._costs.known.get(length)
        return self.acceptance.tokens(length) / cost if cost else 0.0

    def _decide(self) -> None:
        if self.in_force not in self._costs.known:
            return
        best = max(self.menu, key=self._goodput)
        if self._goodput(best) > HYSTERESIS * self._goodput(self.in_force):
            self.in_force = best
            # All of its ring anew: what made it look the best may have been the noise of a few times.
            self._costs.learning = RING if self._costs.level.is_known else 0
        if not self.untimed():
            self._note_change()

    def _note_change(self) -> None:
        """Compare with what was in force in this bucket last: the length may come from another one."""
        before = self._costs.in_force
        before = self.menu[-1] if before is None else before
        if bool(before) != bool(self.in_force):
            self._changes.append(
                Change(before=before, after=self.in_force, bucket=self._bucket, figures=self.figures())
            )
        self._costs.in_force = self.in_force
