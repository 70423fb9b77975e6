# SPDX-License-Identifier: Apache-2.0
"""The engine's process of `benchmarks.step_times`: decode steps of requests that begin together."""

from __future__ import annotations

import time
from itertools import count
from typing import Any, ClassVar

from vllm_eagle_ext.measure.engine.probe import ASKED
from vllm_eagle_ext.measure.engine.process import Engine, main

_SETTLING = 2  # steps before the first that counts: one of the prompts' last tokens, one of a new K
_NUMBERS = count()


class StepEngine(Engine):
    """Times steps in seconds of this process's cores, and of the clock."""

    COMMANDS: ClassVar[tuple[str, ...]] = ("cell", "rpc")

    def cell(self, prompts: list[list[int]], k: int, steps: int, budget_s: float) -> dict[str, Any]:
        """Decode all prompts together with K drafts.

        Args:
            steps: that are timed; after `budget_s` seconds of the cores fewer, at least two.
        """
        from vllm import SamplingParams

        engine, names = self.llm.llm_engine, [f"cell-{next(_NUMBERS)}" for _ in prompts]
        asked = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True, detokenize=False)
        asked.extra_args = {ASKED: k}
        for name, prompt in zip(names, prompts, strict=True):
            engine.add_request(name, {"prompt_token_ids": prompt}, asked.clone())
        times: dict[str, Any] = {"cpu": [], "wall": []}
        began, settling = time.process_time(), _SETTLING
        while len(times["cpu"]) < steps:
            cpu, wall = time.process_time(), time.perf_counter()
            outputs = engine.step()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            settling -= len(outputs) == len(prompts)
            if settling < 0:
                times["cpu"].append(cpu)
                times["wall"].append(wall)
            if len(times["cpu"]) >= 2 and time.process_time() - began > budget_s:
                break
        engine.abort_request(names)
        while engine.has_unfinished_requests():
            engine.step()
        return times


if __name__ == "__main__":
    main(StepEngine)
