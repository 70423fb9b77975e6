"""A target of few tokens whose probabilities hang on the last two, and engines that serve it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from vllm_eagle_ext.measure.engine.load import Answer, Load, Measured

VOCAB = 12


def histogram(drafts: int, accepted: Sequence[int]) -> list[int]:
    """Steps by how many drafts they accepted, of so many per position."""
    return [more - fewer for more, fewer in pairwise([drafts, *accepted, 0])]


@contextmanager
def stage(_title: str, _total: int) -> Iterator[Callable[[int], None]]:
    yield lambda _done: None


def logits(context: Sequence[int]) -> np.ndarray:
    return _logits(bytes(token % 256 for token in context[-2:]))


@lru_cache(VOCAB**2)
def _logits(context: bytes) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(context)).normal(size=VOCAB) * 1.5


def logprobs(context: Sequence[int]) -> np.ndarray:
    raw = logits(context)
    return raw - np.log(np.exp(raw).sum())


def likeliest(contexts: Sequence[Sequence[int]], top: int) -> list[dict[int, float]]:
    rows = []
    for context in contexts:
        row = logprobs(context)
        rows.append({int(token): float(row[token]) for token in row.argsort()[::-1][:top]})
    return rows


@dataclass
class ToyEngine:
    """Two tokens per step. `heat` is what it takes a temperature of 1 for."""

    heat: float = 1.0
    wrong_at: int | None = None  # a token of each greedy text that is not the likeliest
    accepted: int = 500  # of the first drafted tokens
    behind: int | None = None  # of the second ones
    state: str | None = "replay"  # how its worker keeps recurrent states
    loads: list[Load] = field(default_factory=list)
    rng: Any = field(default_factory=lambda: np.random.default_rng(5))

    def __enter__(self) -> ToyEngine:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def logprobs(self, prompts: Sequence[Sequence[int]], top: int) -> list[dict[int, float]]:
        return likeliest(prompts, top)

    def rpc(self, method: str) -> list[dict[str, Any]]:
        return [{"eagle_ext_facts": {"state": self.state}}[method]]

    def load(self, load: Load, progress: Any = None) -> Measured:
        self.loads.append(load)
        answers = [self._answer(prompt, load) for prompt in load.prompts]
        drafts = sum(len(answer.steps) - 1 for answer in answers)
        accepted = [self.accepted, *([] if self.behind is None else [self.behind])]
        answers[0] = replace(answers[0], histogram=histogram(drafts, accepted))
        return Measured(1.0, answers)

    def _answer(self, prompt: Sequence[int], load: Load) -> Answer:
        text: list[int] = []
        for at in range(load.max_tokens):
            row = logits([*prompt, *text])
            if load.temperature:
                chances = np.exp(row / (load.temperature * self.heat))
                text.append(int(self.rng.choice(VOCAB, p=chances / chances.sum())))
            else:
                text.append(int(row.argsort()[-1 if at != self.wrong_at else -2]))
        steps = [1] + [2] * ((len(text) - 1) // 2)
        steps += [1] * (len(text) - sum(steps))
        return Answer(len(prompt), text, steps, 1.0)
