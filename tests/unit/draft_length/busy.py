"""Busy servers, simulated: clients that come back with a new prompt once they have their answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from vllm_eagle_ext.draft_length.controller import DraftLengthController

CONTEXT = 500  # tokens of a prompt
NOISE = 0.03  # of a step's time


@dataclass(frozen=True)
class Load:
    clients: int
    answer: int  # tokens
    away: int = 0  # steps between an answer and the client's next prompt
    chunks: int = 1  # steps that a prompt takes, one after the other; 0: prompts cost nothing
    chunk_seconds: float = 20.0
    chunk_tokens: tuple[int, int] = (250, 500)  # least and most

    def __str__(self) -> str:
        return f"{self.clients} clients, {self.answer} tokens each, {self.away} away, {self.chunks}"


@dataclass
class Served:
    lengths: list[int]  # in force, by step
    shares: list[float]  # goodput of the length that was run over that of the best one, by step

    def share(self, first: int) -> float:
        """Mean share of the steps from `first` on."""
        return sum(self.shares[first:]) / len(self.shares[first:])


class BusyServer:
    """Runs steps in the order of an engine: the drafts of a step are verified in the next one."""

    def __init__(
        self, menu: tuple[int, ...], load: Load, seconds: Callable[[int, int], float],
        accepts: float, seed: int,
    ) -> None:  # fmt: skip
        """
        Args:
            seconds: K and requests -> time of a decode step.
            accepts: probability that a draft's token is accepted, each behind the last.
        """
        self.controller = DraftLengthController(menu)
        self.load, self.seconds, self.accepts = load, seconds, accepts
        self.draw = random.Random(seed)
        self.live = [self.draw.randrange(load.answer) for _ in range(load.clients)]
        self.away: list[int] = []  # the steps in which they come back
        self.chunks_left = 0
        self.previous: int | None = None

    def run(self, steps: int) -> Served:
        served = Served([], [])
        for step in range(steps):
            back = [at for at in self.away if at <= step]
            self.away = [at for at in self.away if at > step]
            self.live += [0] * len(back)
            self.chunks_left += self.load.chunks * len(back)
            if self.live:
                k = self._step(step)
                served.lengths.append(self.controller.in_force)
                served.shares.append(self._goodput(k) / max(map(self._goodput, self.controller.menu)))
        return served

    def _goodput(self, k: int) -> float:
        return sum(self.accepts**j for j in range(k + 1)) / self.seconds(k, self.load.clients)

    def _step(self, step: int) -> int:
        n, context = len(self.live), sum(CONTEXT + tokens for tokens in self.live)
        k = self.controller.next_length(n, context)
        prompt = self.draw.randint(*self.load.chunk_tokens) if self.chunks_left else 0
        self.chunks_left = max(self.chunks_left - 1, 0)
        share = prompt / self.load.chunk_tokens[1]
        spent = self.seconds(k, n) + share * self.load.chunk_seconds
        accepted = [self._accepted(self.previous or 0) for _ in self.live]
        self.controller.observe_drafts(
            self.previous or 0, [(self.previous, tokens) for tokens in accepted if self.previous]
        )
        if self.previous == k:
            self.controller.observe_step(n, context, k, spent * self.draw.gauss(1.0, NOISE), prompt)
        self.previous = k
        grown = [tokens + 1 + more for tokens, more in zip(self.live, accepted, strict=True)]
        self.live = [tokens for tokens in grown if tokens < self.load.answer]
        self.away += [step + 1 + self.load.away] * (len(grown) - len(self.live))
        return k

    def _accepted(self, drafted: int) -> int:
        count = 0
        while count < drafted and self.draw.random() < self.accepts:
            count += 1
        return count
