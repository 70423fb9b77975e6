# SPDX-License-Identifier: Apache-2.0
"""What an engine is asked to decode, and what it measured. Imports neither vLLM nor torch.

Acceptance of single requests: vLLM's histogram of a request counts its steps that verified drafts, by
how many they accepted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest


@dataclass(frozen=True, slots=True)
class Load:
    """Prompts decoded in their order, `concurrency` of them at a time: one begins when another ends."""

    prompts: list[list[int]]  # token ids
    concurrency: int = 1
    max_tokens: int = 128
    temperature: float = 0.0
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class StepLoad:
    """Prompts that begin together and decode together until `steps` steps of all of them were timed.

    Each text goes on past its end, and is ended from outside, so that a step is never cut.
    """

    prompts: list[list[int]]  # token ids
    steps: int
    draft_length: int | None = None  # K, for an engine that holds it; None: the engine's own
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class TimedSteps:
    """What the timed steps of a StepLoad were."""

    seconds: list[float]  # of each
    tokens: int  # of all requests in all of them
    drafts: int = 0  # of all steps, those before the first that was timed too
    accepted: list[int] = field(default_factory=list)  # of them, per position


@dataclass(frozen=True, slots=True)
class Answer:
    prompt_tokens: int
    tokens: list[int]
    steps: list[int]  # tokens of each step of the target; the first step is the prompt's
    decode_s: float  # from the first token to the last
    histogram: list[int] = field(default_factory=list)  # vLLM's: steps with drafts, by those accepted


def added(counts: Iterable[Sequence[int]]) -> list[int]:
    """Add counts per position, of which some reach further than others."""
    return [sum(at) for at in zip_longest(*counts, fillvalue=0)]


def accepted_of(histograms: Sequence[Sequence[int]]) -> list[int]:
    """Count accepted tokens per position, from steps by how many they accepted."""
    steps = added(histograms)
    return [sum(steps[place:]) for place in range(1, len(steps))]


@dataclass(frozen=True, slots=True)
class Measured:
    seconds: float
    answers: list[Answer]  # in the order of the prompts

    @property
    def histograms(self) -> list[list[int]]:
        return [answer.histogram for answer in self.answers]

    @property
    def drafts(self) -> int:
        """Count the steps of all requests that verified drafts."""
        return sum(map(sum, self.histograms))

    @property
    def accepted(self) -> list[int]:
        """Count the drafted tokens that were accepted, per position."""
        return accepted_of(self.histograms)

    @property
    def texts(self) -> list[list[int]]:
        """Return the tokens of each answer."""
        return [answer.tokens for answer in self.answers]


_MOST_BINS = 8


def length_of(histograms: Sequence[Sequence[int]]) -> float:
    """Return the acceptance length over these requests; 0 where none had drafts."""
    drafts = sum(map(sum, histograms))
    return 1 + sum(accepted_of(histograms)) / drafts if drafts else 0.0


def spread_of(
    histograms: Sequence[Sequence[int]], k: int, categories: Sequence[str | None]
) -> dict[str, dict[str, float]]:
    """Return fields of a report: how many requests have which acceptance length, in equal bins "from-to"
    of 1 to at least K + 1, which hold their lower bound, and the length by category."""
    width = math.ceil(k / _MOST_BINS) or 1
    bins = {f"{start}-{start + width}": 0.0 for start in range(1, k + 1, width)}
    for length in map(length_of, ([each] for each in histograms)):
        if length:
            bins[list(bins)[min(int((length - 1) / width), len(bins) - 1)]] += 1
    own: dict[str, list[Sequence[int]]] = {}
    if any(categories):
        for histogram, category in zip(histograms, categories, strict=True):
            own.setdefault(category or "(none)", []).append(histogram)
    lengths = {name: length_of(each) for name, each in own.items()}
    return {
        "requests_by_length": bins,
        "length_by_category": {name: length for name, length in lengths.items() if length},
    }
