# SPDX-License-Identifier: Apache-2.0
"""One engine in a process of its own: JSON lines in, JSON lines out.

    python -m vllm_eagle_ext.measure.engine.process

The first line holds the keywords of LLM(); each later one a command of `Engine.COMMANDS` under "do",
with its arguments. Answers: {"progress": n} any number of times, then {"result": ..} or {"error": ".."}.
It ends when its input does.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict
from itertools import count
from multiprocessing import connection
from typing import Any, ClassVar, TextIO

from vllm_eagle_ext.measure.engine.load import Answer, Load, Measured, StepLoad, TimedSteps
from vllm_eagle_ext.measure.engine.probe import ASKED

_REPORTS_PER_LOAD = 100
_TRIES = 20
_SETTLING = 2  # steps of all requests before the first that counts: K has just changed
_NUMBERS = count()
_DRAFTS = "vllm:spec_decode_num_drafts"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_per_pos"


def time_steps(llm: Any, load: StepLoad, *, detokenize: bool) -> TimedSteps:
    """Decode all prompts at once, and time steps in which each of them gets tokens, and none its first.

    A step is timed from the output before it to its own.

    Raises:
        RuntimeError: a text reached max_model_len, so that fewer requests went on.
    """
    engine = llm.llm_engine
    names = [f"steps-{next(_NUMBERS)}" for _ in load.prompts]
    k = load.draft_length  # what to ask an engine that holds K for; None: the engine's own
    sampling = _sampling(
        load, detokenize=detokenize, max_tokens=None, ignore_eos=True,
        extra_args=None if k is None else {ASKED: k},
    )  # fmt: skip
    for name, prompt in zip(names, load.prompts, strict=True):
        engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
    try:
        return _timed_steps(engine, load)
    finally:
        engine.abort_request(names)
        while engine.has_unfinished_requests():
            engine.step()


def _timed_steps(engine: Any, load: StepLoad) -> TimedSteps:
    begun: set[str] = set()
    seconds: list[float] = []
    tokens = 0
    settling, before = _SETTLING, None
    while len(seconds) < load.steps:
        outputs = engine.step()
        now = time.perf_counter()
        counts = {output.request_id: len(output.outputs[0].token_ids) for output in outputs}
        if any(output.finished for output in outputs):
            raise RuntimeError("a text reached max_model_len before enough steps were timed")
        of_all = len(begun) == len(load.prompts) == sum(map(bool, counts.values()))
        if of_all and before is not None:
            settling -= 1
            if settling < 0:
                seconds.append(now - before)
                tokens += sum(counts.values())
        before = now if of_all else None
        begun |= {name for name, count in counts.items() if count}
    return TimedSteps(seconds, tokens)


def _sampling(load: Load | StepLoad, *, detokenize: bool, **more: Any) -> Any:
    """Make the SamplingParams of a text that is handed over step by step."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=load.temperature, detokenize=detokenize, output_kind=RequestOutputKind.DELTA, **more
    )


class Engine:
    """vLLM's LLM, and what is asked of it. It reports the number of requests that have ended."""

    COMMANDS: ClassVar[tuple[str, ...]] = ("load", "steps", "logprobs", "rpc")

    def __init__(self, arguments: dict[str, Any], report: Callable[[int], None]) -> None:
        from vllm import LLM

        if "speculative_config" in arguments:  # without it vLLM refuses to count
            arguments["per_request_spec_decode_metrics"] = "summary"
        self.llm = LLM(disable_log_stats=False, **arguments)
        self.report = report
        self._detokenize = not self.llm.llm_engine.model_config.skip_tokenizer_init
        self._ids = count()

    def load(self, **load: Any) -> dict[str, Any]:
        """Decode a `Load`, from an empty prefix cache; return a `Measured`."""
        self._empty_prefix_cache()
        started = time.perf_counter()
        answers = self._decode(Load(**load))
        return asdict(Measured(time.perf_counter() - started, answers))

    def steps(self, **load: Any) -> dict[str, Any]:
        """Time the steps of a `StepLoad`, with what the prefix cache holds; return a `TimedSteps`."""
        before = self._counters()
        timed = asdict(time_steps(self.llm, StepLoad(**load), detokenize=self._detokenize))
        counted = self._counters()
        counted.subtract(before)
        drafts = counted.pop(_DRAFTS, 0)
        return timed | {"drafts": drafts, "accepted": [counted[place] for place in sorted(counted)]}

    def logprobs(self, prompts: list[list[int]], top: int) -> list[dict[int, float]]:
        """Return the `top` likeliest next tokens of each prompt at temperature 1, and their logprobs."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=top, detokenize=False)
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self.llm.generate(inputs, params, use_tqdm=False)
        rows = [output.outputs[0].logprobs[0] for output in outputs]
        best = [sorted(row.items(), key=lambda item: -item[1].logprob)[:top] for row in rows]
        return [{token: entry.logprob for token, entry in row} for row in best]

    def rpc(self, method: str, arguments: list[Any]) -> list[Any]:
        """Call a method of every worker's extension."""
        return self.llm.collective_rpc(method, args=tuple(arguments))

    def _empty_prefix_cache(self) -> None:
        for _ in range(_TRIES):
            if self.llm.reset_prefix_cache(reset_connector=True):
                return
            time.sleep(0.1)  # blocks of a request that has just ended
        raise RuntimeError("the prefix cache could not be emptied: blocks are still in use")

    def _decode(self, load: Load) -> list[Answer]:
        params = _sampling(
            load, detokenize=self._detokenize, max_tokens=load.max_tokens, ignore_eos=load.ignore_eos
        )
        waiting = deque(enumerate(load.prompts))
        running: dict[str, _Running] = {}
        answers: list[Answer | None] = [None] * len(load.prompts)
        ended, every = 0, max(1, len(load.prompts) // _REPORTS_PER_LOAD)
        while waiting or running:
            # As many requests run as were asked for.
            while waiting and len(running) < load.concurrency:
                index, prompt = waiting.popleft()
                name = f"load-{next(self._ids)}"
                self.llm.llm_engine.add_request(name, {"prompt_token_ids": prompt}, params)
                running[name] = _Running(index, len(prompt))
            # The tokens of a step are counted.
            outputs = self.llm.llm_engine.step()
            now = time.perf_counter()
            for output in outputs:
                request = running[output.request_id]
                request.add(list(output.outputs[0].token_ids), now)
                if output.finished:
                    counted = output.outputs[0].spec_decode_metrics  # None without a draft
                    answers[request.index] = running.pop(output.request_id).answer(
                        counted.histogram if counted else []
                    )
                    ended += 1
                    if ended % every == 0:
                        self.report(ended)
        return [answer for answer in answers if answer is not None]

    def _counters(self) -> Counter[Any]:
        """Count the drafts under _DRAFTS, and the accepted tokens under their position.

        Of requests that are ended from outside vLLM reports nothing else.
        """
        counts: Counter[Any] = Counter()
        for metric in self.llm.get_metrics():  # one of each name per engine, where several serve
            if metric.name == _DRAFTS:
                counts[_DRAFTS] += int(metric.value)
            elif metric.name == _ACCEPTED:
                counts.update(dict(enumerate(map(int, metric.values))))
        return counts


class _Running:
    """A request that has not ended."""

    def __init__(self, index: int, prompt_tokens: int) -> None:
        self.index, self.prompt_tokens = index, prompt_tokens
        self.tokens: list[int] = []
        self.steps: list[int] = []
        self.first = self.last = 0.0  # when the first token came, and the last

    def add(self, tokens: list[int], now: float) -> None:
        if not tokens:  # an end without a token of its own
            return
        if not self.tokens:
            self.first = now
        self.last = now
        self.tokens += tokens
        self.steps.append(len(tokens))

    def answer(self, drafts: list[int]) -> Answer:
        return Answer(self.prompt_tokens, self.tokens, self.steps, self.last - self.first, drafts)


def serve(lines: TextIO, say: Callable[[dict[str, Any]], None], kind: type[Any] = Engine) -> None:
    engine = None
    for line in lines:
        command = json.loads(line)
        try:
            if engine is None:
                engine = kind(command, lambda ended: say({"progress": ended}))
                threading.Thread(target=_end_with_killed, daemon=True).start()
                say({"result": None})
                continue
            name = command.pop("do")
            if name not in kind.COMMANDS:
                raise ValueError(f"no command {name!r}; there are {', '.join(kind.COMMANDS)}")
            say({"result": getattr(engine, name)(**command)})
        except Exception as error:  # noqa: BLE001 (the parent tells the user)
            traceback.print_exc()
            say({"error": f"{type(error).__name__}: {error}"})
            if engine is None:
                sys.exit(1)


def _end_with_killed() -> None:
    """End this process with a child that is killed: vLLM would wait for its answers for ever."""
    children = {child.sentinel: child for child in multiprocessing.active_children()}
    while children:
        for sentinel in connection.wait(children):
            child = children.pop(sentinel)  # type: ignore[arg-type]
            child.join()
            while (code := child.exitcode) is None:  # vLLM has just reaped it
                time.sleep(0.01)
            if code < 0 and code != -signal.SIGTERM:  # vLLM's own
                sys.stderr.write(f"RuntimeError: process {child.name} died (exit code: {code})\n")
                os._exit(1)


def main(kind: type[Any] = Engine) -> None:
    # vLLM and its children print to descriptor 1; the answers keep the real one for themselves.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    serve(sys.stdin, lambda answer: print(json.dumps(answer), file=answers), kind)


if __name__ == "__main__":
    main()
