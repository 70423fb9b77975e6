# SPDX-License-Identifier: Apache-2.0
"""How long a bench will take: guessed before it starts, then from the engines that have run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vllm_eagle_ext.measure.bench.results import Settings
from vllm_eagle_ext.measure.bench.schedule import Turn

# Of a small model on two cores: a start without compiling, one with it, and tokens of one request.
EAGER_S, COMPILED_S, TOKENS_PER_S = 45.0, 120.0, 200.0


def guessed_s(settings: Settings, turns: Sequence[Turn]) -> float:
    """Seconds of these engines: their starts, and the tokens of what they lack."""
    start_s = EAGER_S if settings.engine.get("enforce_eager") else COMPILED_S
    return sum(
        start_s + sum(_waves(settings, level) for level, _ in turn.missing) * _text_s(settings)
        for turn in turns
    )


def left_s(settings: Settings, ended: Sequence[Turn], spent_s: float, left: Sequence[Turn]) -> float:
    """Seconds of what is left, as those that ended took."""
    return spent_s * guessed_s(settings, left) / guessed_s(settings, ended)


def _waves(settings: Settings, level: int) -> int:
    """Count the texts behind each other."""
    return math.ceil(settings.num_prompts / level)


def _text_s(settings: Settings) -> float:
    return settings.max_tokens / TOKENS_PER_S
