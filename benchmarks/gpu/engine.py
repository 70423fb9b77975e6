# SPDX-License-Identifier: Apache-2.0
"""One engine in a process of its own: builds it, waits for its turn, and answers one question.

python -m benchmarks.gpu.engine FOLDER      # FOLDER/job.json -> built; go -> result.json
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu.kernels import time_kernels

LEVEL_ARGS: dict[str, dict[str, Any]] = {
    "compiled": {},
    "graphs": {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}},
    "eager": {"enforce_eager": True},
}
IDS = range(100, 1500)  # of made-up prompts


def generate(llm: Any, *, prompts: list[list[int]], tokens: int, twice: bool = False) -> dict[str, Any]:
    """Answer prompts greedily. Returns the answers' tokens, vLLM's counters, and whether a second time,
    from a prefix cache, they are the same."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    inputs: Any = [{"prompt_token_ids": prompt} for prompt in prompts]

    def answers() -> list[list[int]]:
        return [
            list(each.outputs[0].token_ids) for each in llm.generate(inputs, sampling, use_tqdm=False)
        ]

    first = answers()
    counters = {}
    for metric in llm.get_metrics():
        if "spec_decode" in metric.name or "prefix_cache" in metric.name:
            values = getattr(metric, "values", None)
            counters[metric.name.removeprefix("vllm:")] = (
                metric.value if values is None else list(values)
            )
    return {"tokens": first, "counters": counters} | ({"again": answers() == first} if twice else {})


def serve(
    llm: Any,
    *,
    requests: list[int],
    prompt: int,
    step_tokens: int,
    clients: int,
    answer: int,
    rounds: int,
) -> dict[str, Any]:
    """Measure the time of a step of so many requests, then the speed of a closed loop of clients.

    A client asks again at once: at most `max_num_seqs` of `rounds` times as many requests run. Speed is
    that between a quarter and three quarters of all tokens.
    """
    loop = Loop(llm)
    loop.run(1, prompt, 16)
    steps = {str(n): loop.step_ms(n, prompt, step_tokens) for n in requests}
    total = clients * rounds * answer
    marks, running = loop.run(clients * rounds, prompt, answer)
    begin, end = (next(mark for mark in marks if mark[1] >= share * total) for share in (0.25, 0.75))
    config = llm.llm_engine.vllm_config
    return {
        "step_ms": steps,
        "tokens_per_s": round((end[1] - begin[1]) / (end[0] - begin[0]), 1),
        "most_running": max(running),
        "mean_running": round(sum(running) / len(running), 1),
        "blocks": config.cache_config.num_gpu_blocks,
        "preemptions": next(
            (m.value for m in llm.get_metrics() if m.name == "vllm:num_preemptions"), None
        ),
    }


class Loop:
    """Steps an engine that lives in this process."""

    def __init__(self, llm: Any) -> None:
        self.engine, self.asked = llm.llm_engine, 0
        self.scheduler = self.engine.engine_core.engine_core.scheduler

    def run(self, count: int, prompt: int, tokens: int) -> tuple[list[tuple[float, int]], list[int]]:
        """Serve requests. Returns (seconds, tokens so far) after each step, and how many ran in it."""
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        for _ in range(count):
            self.asked += 1
            ids = random.Random(self.asked).choices(IDS, k=prompt)
            self.engine.add_request(str(self.asked), {"prompt_token_ids": ids}, sampling)
        started, lengths = time.perf_counter(), dict[str, int]()
        marks, running = list[tuple[float, int]](), list[int]()
        while self.engine.has_unfinished_requests():
            outputs = self.engine.step()
            for output in outputs:
                lengths[output.request_id] = len(output.outputs[0].token_ids)
            if outputs:
                marks.append((time.perf_counter() - started, sum(lengths.values())))
                running.append(len(self.scheduler.running))
        return marks, running

    def step_ms(self, count: int, prompt: int, tokens: int) -> float | None:
        """Return the median milliseconds of a step in which all decode; None: not all fit at once."""
        marks, running = self.run(count, prompt, tokens)
        full = [
            (after[0] - before[0]) * 1e3
            for before, after, ran in zip(marks, marks[1:], running[1:], strict=False)
            if ran == count and before[1] > count
        ]
        return round(median(full), 3) if len(full) > 5 else None


ASK = {"generate": generate, "serve": serve, "time_kernels": time_kernels}


def main(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text())
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
    began = time.monotonic()
    os.environ |= job["environment"]
    import torch
    from vllm import LLM

    if job["engine"]:
        llm = LLM(**job["engine"], **LEVEL_ARGS[job["level"]])
    else:  # no engine: the first answer compiles what the second one times
        llm = ASK[job["ask"]](None, **job["given"])
    built = round(time.monotonic() - began, 1)
    (folder / "built").touch()
    while not (folder / "go").exists():
        time.sleep(0.05)
    result = ASK[job["ask"]](llm, **job["given"])
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    result |= {"built_s": built, "gib": round(peak, 2)}
    temporary = folder / "result.tmp"
    temporary.write_text(json.dumps(result))
    temporary.rename(folder / "result.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
