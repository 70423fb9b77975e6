"""Recorded decode steps, and a plain server that is simulated from them.

Goodput in tokens per CPU-second over an engine without a draft, by requests, of both tiny pairs
(vLLM 0.32, V1 runner, two cores): EAGLE-3 with K = 4, DFlash with K = 7 on the hybrid target with
replay. Beside it the share of drafts accepted up to each position.

And milliseconds of a decode step where no draft is the best, with a drafter that sleeps at K = 0 and
half of the texts sampled at temperature 1: medians of an earlier run of benchmarks.draft_lengths, at the
processor's usual speed.
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
HYBRID_64_MS = {
    1: {0: 7.1, 1: 12.9, 3: 12.7, 7: 13.1},
    4: {0: 8.3, 1: 15.0, 3: 16.0, 7: 18.0},
    16: {0: 11.0, 1: 22.7, 3: 27.3, 7: 32.2},
    32: {0: 15.1, 1: 33.3, 3: 41.3, 7: 53.8},
}
HYBRID_512_MS = {
    1: {0: 7.1, 1: 12.8, 3: 13.3, 7: 13.4},
    4: {0: 8.5, 1: 15.4, 3: 17.1, 7: 18.9},
    16: {0: 12.7, 1: 26.5, 3: 31.4, 7: 38.8},
    32: {0: 17.8, 1: 36.8, 3: 49.8, 7: 68.7},
}
DENSE_512_MS = {32: {0: 21.3, 1: 33.5, 2: 43.3, 3: 50.0, 4: 53.3}}
HYBRID_HALF_SAMPLED = (0.30, 0.13, 0.07, 0.05, 0.04, 0.03, 0.03)
DENSE_HALF_SAMPLED = (0.49, 0.30, 0.21, 0.16)
NOISE, STRAGGLERS, STRAGGLER = 0.25, 0.01, 10.0  # of step times


@dataclass(frozen=True)
class Pair:
    name: str
    goodput: dict[int, dict[int, float]]  # requests -> K -> over no draft
    accepted: tuple[float, ...]

    @property
    def menu(self) -> tuple[int, ...]:
        return tuple(next(iter(self.goodput.values())))

    def tokens(self, k: int) -> float:
        return 1.0 + sum(self.accepted[:k])

    def seconds(self, requests: int, k: int) -> float:
        """A decode step, a tenth of a second being one without a draft."""
        return 0.1 * self.tokens(k) / self.goodput[requests][k]

    def draw_accepted(self, k: int, draw: random.Random) -> int:
        threshold = draw.random()
        return sum(threshold < share for share in self.accepted[:k])


def of_steps(name: str, milliseconds: dict[int, dict[int, float]], accepted: tuple[float, ...]) -> Pair:
    """Make a pair of step times; one of a tenth of a second has a goodput of 1 without drafts."""
    goodput = {
        n: {k: 100.0 * (1.0 + sum(accepted[:k])) / ms for k, ms in steps.items()}
        for n, steps in milliseconds.items()
    }
    return Pair(name, goodput, accepted)


PAIRS = (Pair("eagle3", EAGLE3, EAGLE3_ACCEPTED), Pair("dflash", DFLASH, DFLASH_ACCEPTED))
BETTER_OFF = (
    of_steps("hybrid, 64 tokens", HYBRID_64_MS, HYBRID_HALF_SAMPLED),
    of_steps("hybrid, 512 tokens", HYBRID_512_MS, HYBRID_HALF_SAMPLED),
    of_steps("dense, 512 tokens", DENSE_512_MS, DENSE_HALF_SAMPLED),
)


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
