# SPDX-License-Identifier: Apache-2.0
"""Estimates how many tokens a step of a length yields, from drafts that were verified.

At each position the estimate is the share of accepted drafts among those *reached*, whose earlier
positions were all accepted. A rejected position says nothing of those behind it, and a short draft still
teaches the first positions of a long one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

MEMORY_DRAFTS = 256  # reaching a position, after which one has lost about two thirds of its weight ..
MEMORY_STEPS = 32  # .. but not before so many steps, whose drafts are of the same texts
FOLD_EVERY = 8  # steps
# Steps without drafts after which what was known has lost two thirds of its weight: requests and texts
# are others by then, and the few drafts of a probe must be able to tell.
MEMORY_RESTS = 100
MEMORY_SHORT = 400  # likewise steps of shorter drafts, for the positions behind them ..
LEAST_KEPT = 16.0  # .. but for so many drafts, which a single one does not outweigh
FOLD_AFTER = 3  # steps without drafts; those of the last step with drafts are judged one or two later
# Drafts of other lengths count as so many of a length's own: a parallel drafter's acceptance at a
# position depends on how many it drafts behind it.
_POOLED_WEIGHT = 32.0
_UNKNOWN = 0.5  # where nothing was ever reached


class _Reached:
    """Discounted counts per position, 0 being the first draft token."""

    def __init__(self, longest: int) -> None:
        self.reached = [0.0] * longest
        self.accepted = [0.0] * longest

    def discount(self, kept: Sequence[float]) -> None:
        self.reached = [count * share for count, share in zip(self.reached, kept, strict=True)]
        self.accepted = [count * share for count, share in zip(self.accepted, kept, strict=True)]

    def add(self, drafted: int, accepted: int, times: int) -> None:
        for position in range(min(accepted + 1, drafted)):
            self.reached[position] += times
        for position in range(accepted):
            self.accepted[position] += times


class PositionAcceptance:
    """Keeps conditional acceptance per position, for drafts of each length and for all together."""

    def __init__(self, menu: Sequence[int]) -> None:
        self._longest = max(menu)
        self._all = _Reached(self._longest)
        self._own = {k: _Reached(self._longest) for k in menu if k}
        self._seen: Counter[tuple[int, int, int]] = Counter()  # since the last fold
        self._steps = 0
        self._rests = 0

    def observe(self, length: int, outcomes: Sequence[tuple[int, int]]) -> None:
        """Take the drafts of one step.

        Args:
            length: K in force when they were drafted.
            outcomes: per request with drafts, how many were verified and how many of them accepted.
        """
        if self._rests > FOLD_AFTER:
            self._age(self._rests)
        self._rests = 0
        for (drafted, accepted), times in Counter(outcomes).items():
            drafted = min(drafted, self._longest)
            self._seen[length, drafted, min(accepted, drafted)] += times
        self._steps += 1
        if self._steps >= FOLD_EVERY:
            self._fold()

    def rest(self) -> None:
        """Take note of a step that drafts nothing."""
        self._rests += 1
        if self._rests == FOLD_AFTER and self._seen:
            self._fold()

    def _age(self, rests: int) -> None:
        kept = [math.exp(-rests / MEMORY_RESTS)] * self._longest
        for counts in (self._all, *self._own.values()):
            counts.discount(kept)

    def _fold(self) -> None:
        """Add what was seen. A position forgets as much as it was reached anew; behind the longest draft
        it fades slowly: its rate stays, and what reaches it again tells the more."""
        fresh = _Reached(self._longest)
        for (_, drafted, accepted), times in self._seen.items():
            fresh.add(drafted, accepted, times)
        least = 1.0 - self._steps / MEMORY_STEPS
        longest = max((drafted for _, drafted, _ in self._seen), default=0)
        kept = [max(1.0 - reached / MEMORY_DRAFTS, least) for reached in fresh.reached[:longest]]
        kept += [self._faded(known) for known in self._all.reached[longest:]]
        for counts in (self._all, *self._own.values()):
            counts.discount(kept)
        for (length, drafted, accepted), times in self._seen.items():
            self._all.add(drafted, accepted, times)
            if length in self._own:
                self._own[length].add(drafted, accepted, times)
        self._seen.clear()
        self._steps = 0

    def _faded(self, known: float) -> float:
        """Return the share that is kept of so many drafts, where none was long enough."""
        return max(math.exp(-self._steps / MEMORY_SHORT), min(LEAST_KEPT / known, 1.0)) if known else 1.0

    def rates(self, length: int) -> list[float]:
        """Return the conditional acceptance at each position of a draft of this length."""
        own, pooled, rates = self._own.get(length), _UNKNOWN, []
        for position in range(length):
            if (reached := self._all.reached[position]) > 0.0:
                pooled = self._all.accepted[position] / reached
            hits = own.accepted[position] if own else 0.0
            tries = own.reached[position] if own else 0.0
            rates.append((hits + _POOLED_WEIGHT * pooled) / (tries + _POOLED_WEIGHT))
        return rates

    def tokens(self, length: int) -> float:
        """Return the expected tokens of a step and request, the target's own token included."""
        expected = reach = 1.0
        for rate in self.rates(length):
            reach *= rate
            expected += reach
        return expected
