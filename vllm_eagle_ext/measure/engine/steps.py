# SPDX-License-Identifier: Apache-2.0
"""Times decode steps of requests that decode together. Runs in the engine's process."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

from vllm_eagle_ext.measure.engine.held_length import ASKED
from vllm_eagle_ext.measure.engine.load import StepLoad, TimedSteps

_SETTLING = 2  # steps of all requests before the first that counts: K has just changed
_NUMBERS = count()


def time_steps(llm: Any, load: StepLoad, *, detokenize: bool) -> TimedSteps:
    """Decode all prompts at once, and time steps in which each of them gets tokens, and none its first.

    A step is timed from the output before it to its own.

    Args:
        llm: vLLM's LLM, with nothing to do.

    Raises:
        RuntimeError: a text reached max_model_len, so that fewer requests went on.
    """
    engine = llm.llm_engine
    names = [f"steps-{next(_NUMBERS)}" for _ in load.prompts]
    for name, prompt in zip(names, load.prompts, strict=True):
        sampling = endless_sampling(load.draft_length, load.temperature, detokenize=detokenize)
        engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
    try:
        return _collected(engine, load)
    finally:
        engine.abort_request(names)
        while engine.has_unfinished_requests():
            engine.step()


def _collected(engine: Any, load: StepLoad) -> TimedSteps:
    begun: set[str] = set()
    seconds: list[float] = []
    tokens = context = 0
    so_far = sum(map(len, load.prompts))
    settling, before = _SETTLING, None
    while len(seconds) < load.steps:
        outputs = engine.step()
        now = time.perf_counter()
        found = {output.request_id: len(output.outputs[0].token_ids) for output in outputs}
        if any(output.finished for output in outputs):
            raise RuntimeError("a text reached max_model_len before enough steps were timed")
        of_all = len(begun) == len(load.prompts) == sum(map(bool, found.values()))
        if of_all and before is not None:
            settling -= 1
            if settling < 0:
                seconds.append(now - before)
                tokens += sum(found.values())
        before = now if of_all else None
        begun |= {name for name, got in found.items() if got}
        so_far += sum(found.values())
        if len(seconds) <= load.steps // 2:
            context = so_far
    return TimedSteps(seconds, tokens, context)


def endless_sampling(draft_length: int | None, temperature: float, *, detokenize: bool) -> Any:
    """Make the SamplingParams of a text that goes on past its end, until it is aborted.

    Args:
        draft_length: K to ask an engine with `held_length` for; None: the engine's own.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=temperature,
        max_tokens=None,  # as many as max_model_len leaves
        ignore_eos=True,
        detokenize=detokenize,
        output_kind=RequestOutputKind.DELTA,
        extra_args=None if draft_length is None else {ASKED: draft_length},
    )
