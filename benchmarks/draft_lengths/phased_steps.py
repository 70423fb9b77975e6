# SPDX-License-Identifier: Apache-2.0
"""Decodes the phases of a load, and times the steps of decoding alone. Runs in the engine's process."""

from __future__ import annotations

import time
from collections import deque
from itertools import count
from typing import Any

from benchmarks.draft_lengths.phased_load import PhasedLoad, PhasedSteps
from benchmarks.machine_speed import ReferenceWork
from vllm_eagle_ext.measure.engine.steps import endless_sampling

_NUMBERS = count()
# Steps between pieces of reference work, and how many run then. Few steps are followed by any: "auto"
# times them from output to output, by medians that a few longer ones do not move.
_EVERY, _PIECES = 8, 4


class Phases:
    """One load; `run` decodes it.

    A step counts where each request gets tokens, and none of them its first. Pieces of
    reference work run behind some of these, in no step's time.

    Args:
        llm: vLLM's LLM, with nothing to do, and its core in this process.
    """

    def __init__(self, llm: Any, load: PhasedLoad, *, detokenize: bool) -> None:
        self.engine, self.load, self.detokenize = llm.llm_engine, load, detokenize
        self._waiting = deque(enumerate(load.prompts))
        self._running: dict[str, int] = {}  # a request's prompt, the first request first
        self._begun: set[str] = set()
        self._of_prompt = [(0, 0)] * len(load.prompts)
        self._cpu_s = self._wall_s = 0.0
        self._steps = self._decoded = 0
        self._work = ReferenceWork()

    def run(self) -> PhasedSteps:
        """Decode all phases.

        Raises:
            RuntimeError: a text reached max_model_len.
        """
        try:
            for requests in self.load.phases:
                self._let_in_or_out(requests)
                self._decode(requests * self.load.tokens)
        finally:
            self.engine.abort_request(list(self._running))
            while self.engine.has_unfinished_requests():
                self.engine.step()
        return PhasedSteps(
            self._cpu_s, self._wall_s, self._steps, self._of_prompt, self._decoded, self._work.piece_s
        )

    def _let_in_or_out(self, requests: int) -> None:
        while len(self._running) > requests:
            name = next(iter(self._running))
            del self._running[name]
            self.engine.abort_request([name])
        while len(self._running) < requests:
            place, prompt = self._waiting.popleft()
            name = f"phase-{next(_NUMBERS)}"
            self._running[name] = place
            sampling = endless_sampling(
                self.load.draft_length, self.load.temperatures[place], detokenize=self.detokenize
            )
            self.engine.add_request(name, {"prompt_token_ids": prompt}, sampling)

    def _decode(self, wanted: int) -> None:
        """Step until the requests have `wanted` tokens together from steps that count."""
        got = 0
        while got < wanted:
            cpu, wall = time.process_time(), time.perf_counter()
            outputs = self.engine.step()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            if any(output.finished for output in outputs if output.request_id in self._running):
                raise RuntimeError("a text reached max_model_len before its phases had ended")
            tokens = {one.request_id: len(one.outputs[0].token_ids) for one in outputs}
            if self._counts(tokens):
                self._cpu_s += cpu
                self._wall_s += wall
                self._time_the_machine()
                self._steps += 1
                got += sum(tokens.values())
                self._add(tokens)
            going_on = {name for name, found in tokens.items() if found}
            self._decoded += len(going_on & self._begun)
            self._begun |= going_on

    def _time_the_machine(self) -> None:
        if self._steps % _EVERY == 0:
            for _ in range(_PIECES):
                self._work.run()

    def _counts(self, tokens: dict[str, int]) -> bool:
        return all(tokens.get(name) and name in self._begun for name in self._running)

    def _add(self, tokens: dict[str, int]) -> None:
        for name, found in tokens.items():
            before, steps = self._of_prompt[self._running[name]]
            self._of_prompt[self._running[name]] = before + found, steps + 1
