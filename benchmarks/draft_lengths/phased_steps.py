# SPDX-License-Identifier: Apache-2.0
"""Decodes the phases of a load, and times the steps of decoding alone. Runs in the engine's process."""

from __future__ import annotations

import time
from collections import deque
from itertools import count
from typing import Any

from benchmarks.draft_lengths.length_watch import LengthWatch
from benchmarks.draft_lengths.phased_load import PhasedLoad, PhasedSteps
from benchmarks.machine_speed import ReferenceWork
from vllm_eagle_ext.measure.engine.steps import endless_sampling

_NUMBERS = count()
# Behind every so many steps reference work runs, for this share of their time: the speed of the machine
# is known as well in few long steps as in many short ones.
_EVERY, _SHARE = 4, 0.1


class Phases:
    """One load; `run` decodes it.

    A step counts where each request gets tokens, and none of them its first, once the requests have
    settled. Reference work runs between such steps and is in the time of none, neither here nor by the
    clock of "auto".

    Args:
        llm: vLLM's LLM, with nothing to do, and its core in this process.
    """

    def __init__(self, llm: Any, load: PhasedLoad, *, detokenize: bool) -> None:
        self.engine, self.load, self.detokenize = llm.llm_engine, load, detokenize
        self.scheduler = self.engine.engine_core.engine_core.scheduler
        self._waiting = deque(enumerate(load.prompts))
        self._running: dict[str, int] = {}  # a request's prompt, the first request first
        self._begun: set[str] = set()
        self._of_prompt = [(0, 0)] * len(load.prompts)
        self._cpu_s = self._wall_s = self._untold_s = 0.0
        self._steps = self._decoded = 0
        self._settling = load.settling * load.phases[0]  # tokens
        self._by_length: dict[tuple[int, bool], list[float]] = {}
        self._work = ReferenceWork()
        self._watch = LengthWatch(self.scheduler, load.draft_length, self._clock)

    def run(self) -> PhasedSteps:
        """Decode all phases.

        Raises:
            RuntimeError: a text reached max_model_len.
        """
        with self._watch:
            try:
                for requests in self.load.phases:
                    self._let_in_or_out(requests)
                    self._decode(requests * self.load.tokens)
            finally:
                self.engine.abort_request(list(self._running))
                # One step of nothing: without it "auto" would time the next load from this one's end.
                while self.engine.has_unfinished_requests() or self.scheduler.has_requests():
                    self.engine.step()
        return PhasedSteps(
            self._cpu_s, self._wall_s, self._steps, self._of_prompt, self._decoded, self._work.piece_s,
            by_length=[
                (k, is_probe, int(steps), cpu_s, wall_s, int(tokens))
                for (k, is_probe), (steps, cpu_s, wall_s, tokens) in sorted(self._by_length.items())
            ],
        )  # fmt: skip

    def _clock(self) -> float:
        """Seconds, without those of reference work."""
        return time.perf_counter() - self._work.wall_s

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
        got, most = 0, self.load.most_steps
        while got < wanted and (most is None or self._steps < most):
            cpu, wall = time.process_time(), time.perf_counter()
            outputs = self.engine.step()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            if any(output.finished for output in outputs if output.request_id in self._running):
                raise RuntimeError("a text reached max_model_len before its phases had ended")
            tokens = {one.request_id: len(one.outputs[0].token_ids) for one in outputs}
            if not self._is_of_all(tokens):
                pass
            elif self._settling > 0:
                self._settling -= sum(tokens.values())
            else:
                got += sum(tokens.values())
                self._add(tokens, cpu, wall)
                self._time_the_machine(cpu)
            going_on = {name for name, found in tokens.items() if found}
            self._decoded += len(going_on & self._begun)
            self._begun |= going_on

    def _is_of_all(self, tokens: dict[str, int]) -> bool:
        return all(tokens.get(name) and name in self._begun for name in self._running)

    def _add(self, tokens: dict[str, int], cpu_s: float, wall_s: float) -> None:
        self._cpu_s += cpu_s
        self._wall_s += wall_s
        self._steps += 1
        for name, found in tokens.items():
            before, steps = self._of_prompt[self._running[name]]
            self._of_prompt[self._running[name]] = before + found, steps + 1
        if (chosen := self._watch.chosen) is not None:
            sums = self._by_length.setdefault(chosen, [0, 0.0, 0.0, 0])
            for place, more in enumerate((1, cpu_s, wall_s, sum(tokens.values()))):
                sums[place] += more

    def _time_the_machine(self, cpu_s: float) -> None:
        self._untold_s += cpu_s
        if (self._steps - 1) % _EVERY:  # behind the first one already: few may follow
            return
        until = self._work.cpu_s + _SHARE * self._untold_s
        while self._work.cpu_s < until:
            self._work.run()
        self._untold_s = 0.0
