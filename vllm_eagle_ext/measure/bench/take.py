# SPDX-License-Identifier: Apache-2.0
"""What is kept of the answers of one load."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_eagle_ext.measure.bench.results import ContextBin, Measurement, Variant, sha256_of
from vllm_eagle_ext.measure.engine.load import Answer, Measured

_LEAST_BIN = 128  # tokens of context; each further bin is twice as wide


def measurement(
    variant: Variant, repeat: int, concurrency: int, found: Measured, other_cores: float | None = None
) -> Measurement:
    answers = found.answers
    return Measurement(
        variant=variant,
        repeat=repeat,
        concurrency=concurrency,
        seconds=found.seconds,
        requests=len(answers),
        tokens=sum(len(answer.tokens) for answer in answers),
        decode_s=sum(answer.decode_s for answer in answers),
        decode_steps=sum(len(answer.steps) - 1 for answer in answers if answer.steps),
        ttft_s=[answer.ttft_s for answer in answers],
        tpot_s=[a.decode_s / (len(a.tokens) - 1) for a in answers if len(a.tokens) > 1],
        drafts=found.drafts,
        drafted=found.drafted,
        accepted=found.accepted,
        by_context=by_context(answers),
        texts_sha256=sha256_of([answer.tokens for answer in answers]),
        other_cores=other_cores,
    )


def by_context(answers: Sequence[Answer]) -> list[ContextBin]:
    """Count every step but the prompt's and the last, which the answer's end may have cut."""
    steps: dict[int, list[int]] = {}
    for answer in answers:
        context = answer.prompt_tokens
        for index, tokens in enumerate(answer.steps):
            if 0 < index < len(answer.steps) - 1:
                steps.setdefault(max(0, (context // _LEAST_BIN).bit_length()), []).append(tokens)
            context += tokens
    return [
        ContextBin(start=start, end=end, steps=len(found), tokens=sum(found))
        for (start, end), found in ((_edges(number), steps[number]) for number in sorted(steps))
    ]


def _edges(number: int) -> tuple[int, int]:
    return (_LEAST_BIN << number >> 1 if number else 0), _LEAST_BIN << number
