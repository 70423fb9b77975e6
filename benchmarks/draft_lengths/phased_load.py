# SPDX-License-Identifier: Apache-2.0
"""What an engine is asked to decode in phases, and what it measured. Imports neither vLLM nor torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

# K, whether a probe of "auto" chose it, steps, CPU seconds, seconds and tokens.
StepsOfLength = tuple[int, bool, int, float, float, int]


@dataclass(frozen=True, slots=True)
class PhasedLoad:
    """Requests that decode together, as many as each phase says, until they have so many tokens.

    The first requests leave first where a phase has fewer than the one before it. Texts go on past their
    end, and are ended from outside, so that a step is never cut.
    """

    prompts: list[list[int]]  # token ids, in the order in which they begin
    temperatures: list[float]  # of each
    phases: list[int]  # requests at a time
    tokens: int  # of a request and phase, the mean over its requests
    draft_length: int | None = None  # K that an engine with `held_length` or "auto" holds; None: its own
    settling: int = 0  # tokens of a request, the mean, before the first step that counts
    most_steps: int | None = None  # that count, after which it ends

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PhasedSteps:
    """What the steps of decoding alone were, all phases together."""

    cpu_s: float  # processor time of the engine's process, its core among it
    wall_s: float
    steps: int
    of_prompt: list[tuple[int, int]]  # tokens of each, and the steps in which it got them
    decoded: int  # steps of each request behind its first token, those beside prompts too
    piece_s: float  # CPU time of a piece of reference work between these steps, the mean
    by_length: list[StepsOfLength] = field(default_factory=list)  # where "auto" chose K
    drafts: int = 0  # of these
    drafted: int = 0  # tokens of them
    accepted: list[int] = field(default_factory=list)  # of them, per position
