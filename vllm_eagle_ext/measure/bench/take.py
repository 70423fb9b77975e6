# SPDX-License-Identifier: Apache-2.0
"""Asks an engine for one load, whole texts or steps of decoding, and keeps the figures."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from vllm_eagle_ext.measure.bench.order import prompts_of
from vllm_eagle_ext.measure.bench.results import ServedLoad, Settings, Variant, sha256_of
from vllm_eagle_ext.measure.engine.client import EngineProcess
from vllm_eagle_ext.measure.engine.load import Load, Measured, StepLoad, TimedSteps

_WARM_TOKENS, _WARM_STEPS, _PROBE_TOKENS = 16, 4, 64


def warm_up(
    engine: EngineProcess, settings: Settings, variant: Variant, load: ServedLoad, prompts: Any
) -> None:
    """Run a short load, for what is compiled at first use."""
    if settings.steps:
        _timed_steps(engine, settings, variant, prompts_of(load, 0, prompts)[0], _WARM_STEPS)
    else:
        level = load.concurrency
        engine.load(whole_texts(settings, prompts[:level], level, _WARM_TOKENS))


def take(
    engine: EngineProcess,
    settings: Settings,
    variant: Variant,
    load: ServedLoad,
    prompts: Sequence[list[int]],
    number: int,
) -> dict[str, Any]:
    """Measure a variant at a load, and give the figures of a Measurement.

    Args:
        number: of the round.
    """
    if not settings.steps:
        return figures_of_texts(engine.load(whole_texts(settings, prompts, load.concurrency)))
    waves = prompts_of(load, number, prompts)
    found = [_timed_steps(engine, settings, variant, wave, settings.steps) for wave in waves]
    return figures_of_steps(found)


def split_of(
    engine: EngineProcess, settings: Settings, prompts: Sequence[list[int]], level: int
) -> dict[str, Any]:
    """Measure the parts of a step, apart from what is timed; no steps where none was of this load."""
    engine.rpc("eagle_ext_time_steps", level)
    engine.load(whole_texts(settings, prompts[: 2 * level], level, _PROBE_TOKENS))
    found: dict[str, Any] = engine.rpc("eagle_ext_time_steps", 0)[0]
    return found


def figures_of_texts(found: Measured) -> dict[str, Any]:
    answers = found.answers
    steps = sum(len(answer.steps) - 1 for answer in answers if answer.steps)
    decode_s = sum(answer.decode_s for answer in answers)
    return {
        "tokens_per_s": sum(len(answer.tokens) for answer in answers) / found.seconds,
        # TPOT x acceptance length weighs all texts alike, and takes a cut last step for whole.
        "step_s": decode_s / steps if steps else None,
        "drafts": found.drafts,
        "accepted": found.accepted,
        "ttft_s": [answer.ttft_s for answer in answers],
        "tpot_s": [a.decode_s / (len(a.tokens) - 1) for a in answers if len(a.tokens) > 1],
        "texts_sha256": sha256_of([answer.tokens for answer in answers]),
    }


def figures_of_steps(waves: Sequence[TimedSteps]) -> dict[str, Any]:
    """Compute the figures of a load from all its waves."""
    seconds = [second for one in waves for second in one.seconds]
    step_s = median(seconds)
    longest = max((one.accepted for one in waves), key=len)
    return {
        "tokens_per_s": sum(one.tokens for one in waves) / len(seconds) / step_s,
        "step_s": step_s,
        "drafts": sum(one.drafts for one in waves),
        "accepted": [
            sum(one.accepted[position] for one in waves if position < len(one.accepted))
            for position in range(len(longest))
        ],
    }


def whole_texts(
    settings: Settings, prompts: Sequence[list[int]], level: int, max_tokens: int | None = None
) -> Load:
    return Load(
        prompts=list(prompts),
        concurrency=level,
        max_tokens=max_tokens or settings.max_tokens,
        temperature=settings.temperature,
        ignore_eos=settings.ignore_eos,
    )


def _timed_steps(
    engine: EngineProcess, settings: Settings, variant: Variant, prompts: list[list[int]], steps: int
) -> TimedSteps:
    held = variant.k if variant.kind == "held" else None
    return engine.steps(StepLoad(prompts, steps, held, settings.temperature))
