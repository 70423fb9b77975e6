"""Python calls and torch operations of decode steps, of an engine that accepts every draft.

`serve` is what `tests.support.batches.Engine(use=..)` names. The engine's statistics must be off: it
logs them by the clock.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.engine import ROOT

SETTLING, STEPS = 4, 4  # steps before those that count, and of each count
WASTED_CALLS = 200
_INTERPRETER = "/triton/"  # which runs kernels on a CPU: nothing that it calls is a part of a step


class _Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops[str(func)] += 1
        return func(*args, **(kwargs or {}))


def operations_of(step: Callable[[], Any]) -> Counter[str]:
    with _Operations() as count:
        for _ in range(STEPS):
            step()
    return count.ops


def calls_of(step: Callable[[], Any]) -> Counter[str]:
    """By file and function."""
    calls: Counter[Any] = Counter()
    outermost: Any = None  # frame of the interpreter

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal outermost
        if event == "call" and outermost is None:
            if _INTERPRETER in frame.f_code.co_filename:
                outermost = frame
            else:
                calls[frame.f_code] += 1
        elif event == "return" and frame is outermost:
            outermost = None

    sys.setprofile(profile)
    try:
        for _ in range(STEPS):
            step()
    finally:
        sys.setprofile(None)
    names: Counter[str] = Counter()
    for code, count in calls.items():
        file = code.co_filename.rpartition("site-packages/")[2].removeprefix(f"{ROOT}/")
        names[f"{file}:{code.co_qualname}"] += count
    return names


def serve(llm: Any, job: dict[str, Any], _: dict[str, Any]) -> dict[str, Any]:
    from vllm import SamplingParams

    from vllm_eagle_ext.compat import add_synthetic_acceptance

    add_synthetic_acceptance()
    engine = llm.llm_engine
    for number, prompt in enumerate(job["prompts"]):
        params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True, detokenize=False)
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
    for _step in range(SETTLING):
        engine.step()
    gc.collect()
    gc.disable()  # what it calls depends on what was allocated
    try:
        counts = {name: count(engine.step) for name, count in COUNTS.items()}
        waste(engine)
        wasted = {f"{name}, wasted": count(engine.step) for name, count in COUNTS.items()}
    finally:
        gc.enable()
    return counts | wasted


COUNTS = {"calls": calls_of, "operations": operations_of}


def waste(engine: Any) -> None:
    """Let each step from now on make calls, and an operation, that it does not need."""
    import torch

    runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    sample, nothing = runner.sample_tokens, torch.zeros(1)

    def wasteful(*args: Any, **kwargs: Any) -> Any:
        for _ in range(WASTED_CALLS):
            _idle()
        nothing.add_(1)
        return sample(*args, **kwargs)

    runner.sample_tokens = wasteful


def _idle() -> None:
    pass
