"""Recorded decode steps, and a plain server that is simulated from them.

Goodput in tokens per CPU-second over an engine without a draft, by requests, of both tiny pairs
(vLLM 0.32, V1 runner, two cores): EAGLE-3 with K = 4, DFlash with K = 7 on the hybrid target with
replay. Beside it the share of drafts accepted up to each position.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

EAGLE3 = {
    1: {0: 0.80, 1: 1.34, 2: 1.54, 3: 1.78, 4: 1.73},
    4: {0: 0.79, 1: 1.27, 2: 1.51, 3: 1.70, 4: 1.73},
    16: {0: 0.77, 1: 1.13, 2: 1.28, 3: 1.44, 4: 1.42},
    32: {0: 0.82, 1: 1.17, 2: 1.19, 3: 1.28, 4: 1.08},
}
DFLASH = {
    1: {0: 0.60, 1: 0.86, 2: 0.99, 3: 1.08, 5: 1.06, 7: 1.14},
    4: {0: 0.56, 1: 0.74, 2: 0.88, 3: 0.92, 5: 0.87, 7: 0.97},
    16: {0: 0.52, 1: 0.58, 2: 0.71, 3: 0.72, 5: 0.70, 7: 0.65},
    32: {0: 0.42, 1: 0.53, 2: 0.55, 3: 0.52, 5: 0.50, 7: 0.49},
}
EAGLE3_ACCEPTED = (0.75, 0.59, 0.48, 0.41)
DFLASH_ACCEPTED = (0.49, 0.24, 0.13, 0.09, 0.06, 0.05, 0.04)
NOISE, STRAGGLERS, STRAGGLER = 0.25, 0.01, 10.0  # of step times


@dataclass(frozen=True)
class Pair:
    name: str
    goodput: dict[int, dict[int, float]]  # requests -> K -> over no draft
    accepted: tuple[float, ...]

    @property
    def menu(self) -> tuple[int, ...]:
        return tuple(self.goodput[1])

    def tokens(self, k: int) -> float:
        return 1.0 + sum(self.accepted[:k])

    def seconds(self, requests: int, k: int) -> float:
        """A decode step, a tenth of a second being one without a draft."""
        return 0.1 * self.tokens(k) / self.goodput[requests][k]

    def draw_accepted(self, k: int, draw: random.Random) -> int:
        threshold = draw.random()
        return sum(threshold < share for share in self.accepted[:k])


PAIRS = (Pair("eagle3", EAGLE3, EAGLE3_ACCEPTED), Pair("dflash", DFLASH, DFLASH_ACCEPTED))


def noisy(seconds: float, draw: random.Random) -> float:
    slow = STRAGGLER if draw.random() < STRAGGLERS else 1.0
    return seconds * slow * max(draw.gauss(1.0, NOISE), 0.1)


class Server:
    """Runs decode steps of a controller; a change of K leaves one step untimed, as in an engine."""

    def __init__(self, controller, draw: random.Random) -> None:
        self.controller = controller
        self.draw = draw
        self.previous: int | None = None
        self.tokens = self.seconds = 0.0

    def step(self, requests: int, context: int, seconds, accepted, *, is_timed: bool = True) -> int:
        """Run one step.

        Args:
            seconds: K -> the step's time without noise.
            accepted: K -> tokens accepted, drawn per request.
        """
        k = self.controller.next_length(requests, context)
        outcomes = [(k, accepted(k)) for _ in range(requests)] if k else []
        self.controller.observe_drafts(k, outcomes)
        if is_timed and k == self.previous:
            self.controller.observe_step(requests, context, k, noisy(seconds(k), self.draw))
        self.previous = k if is_timed else None
        self.tokens += requests + sum(count for _, count in outcomes)
        self.seconds += seconds(k)
        return k
