# SPDX-License-Identifier: Apache-2.0
"""What a step costs at K=0 on a CPU, its draft asleep and awake, against an engine that has no draft:
both tiny pairs, V1 runner.

    python -m benchmarks.zero_length [--pair hybrid] [--write]

Engines of one thread take turns, each in a process of its own. Each decodes with 32 greedy requests,
with 32 of which every second one is sampled at temperature 1, and with one greedy request; the CPU time
of a step is the median of the decode steps, at the median speed of the processor (`machine_speed`).
Parts are timed around methods of vLLM, in a generation of their own, so that the watches are in no
total of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import process_time
from typing import Any
from unittest import mock

from benchmarks.machine import machine
from benchmarks.machine_speed import ReferenceWork
from tests.support.engine import IN_PROCESS, TINY, engine_environment

RESULT = Path(__file__).parent / "results" / "zero_length_cpu.json"
TURNS, TOKENS, WARM_UP = 3, 120, 20
# Name -> requests, and which of them are sampled: every so manieth, 0 for none.
LOADS = {"32": (32, 0), "32, half sampled": (32, 2), "1": (1, 0)}
# Pair -> target, and method, draft and K, which is never drafted.
PAIRS = {
    "hybrid": ("hybrid_target", "dflash", "dflash", 7),
    "dense": ("target", "eagle3", "postnorm", 4),
}
ENGINES: dict[str, dict[str, Any] | None] = {
    "no draft": None,
    "K=0": {},
    "K=0, draft awake": {"draft_off": "keep"},
}
# Part -> methods of the runner or the scheduler that it is made of, none of which calls another's.
RUNNER = {
    "states": ("_update_states",),
    "model": ("_model_forward",),
    "drafter": ("propose_draft_token_ids",),
    "sampler": ("_sample",),
    "draft metadata": ("_calc_spec_decode_metadata",),
    "attention metadata": ("_build_attention_metadata",),
    "bookkeeping": ("_bookkeeping_sync",),
}
SCHEDULER = {"scheduler": ("schedule", "update_from_output", "update_draft_token_ids")}
RECURRENT = "recurrent layers"
PIECE = "piece of reference work"


class Watch:
    """CPU seconds of each part in the step that runs."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)

    def around(self, part: str, method: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = process_time()
            try:
                return method(*args, **kwargs)
            finally:
                self.spent[part] += process_time() - begin

        return timed

    @contextmanager
    def on(self, engine: Any) -> Iterator[None]:
        """The parts of this engine are timed, until the end."""
        from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention

        core = engine.engine_core.engine_core
        runner = core.model_executor.driver_worker.worker.model_runner
        layers = runner.compilation_config.static_forward_context.values()
        watched = [(runner, RUNNER), (core.scheduler, SCHEDULER)]
        recurrent = {RECURRENT: ("forward",)}
        watched += [(x, recurrent) for x in layers if isinstance(x, QwenGatedDeltaNetAttention)]
        patches = [
            mock.patch.object(owner, name, self.around(part, getattr(owner, name)))
            for owner, parts in watched
            for part, names in parts.items()
            for name in names
        ]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in patches:
                patch.stop()


def decode(engine: Any, name: str, load: str, watch: Watch | None) -> list[dict[str, float]]:
    """Milliseconds of each decode step behind the first ones, whole, by part, and of a piece of work."""
    from vllm import SamplingParams

    requests, sampled = LOADS[load]
    for number in range(requests):
        params = SamplingParams(
            temperature=float(bool(sampled) and number % sampled == 0),
            max_tokens=TOKENS,
            ignore_eos=True,
            detokenize=False,
        )
        prompt = [1 + (7 * number + 13 * i) % 1500 for i in range(16)]
        engine.add_request(f"{name} {load} {number}", {"prompt_token_ids": prompt}, params)
    steps: list[dict[str, float]] = []
    work = ReferenceWork()
    while engine.has_unfinished_requests():
        spent = watch.spent if watch else {}
        spent.clear()
        begin = process_time()
        engine.step()
        steps.append({"step": process_time() - begin, **spent})
        work.run()
        steps[-1][PIECE] = work.last_s
    return [{part: 1e3 * s for part, s in step.items()} for step in steps[WARM_UP:-2]]


def medians(steps: list[dict[str, float]]) -> dict[str, float]:
    parts = sorted({part for step in steps for part in step})
    return {part: statistics.median(step.get(part, 0.0) for step in steps) for part in parts}


def in_pieces(milliseconds: dict[str, float]) -> dict[str, float]:
    """Times in pieces of reference work, that of a piece apart."""
    piece = milliseconds[PIECE]
    return {part: ms if part == PIECE else ms / piece for part, ms in milliseconds.items()}


def measure(pair: str, kind: str) -> dict[str, Any]:
    """Of one engine: load -> times in pieces of reference work, and milliseconds of a piece."""
    from tests.support.in_process import build, close

    options = ENGINES[kind]
    target, method, draft, k = PAIRS[pair]
    speculative = {
        "method": method, "model": str(TINY / draft), "num_speculative_tokens": k,
        "num_speculative_tokens_per_batch_size": [[1, 64, 0], [65, 256, k]],
    }  # fmt: skip
    job = {"target": str(TINY / target), "speculative": speculative, "engine_args": {}}
    if options is None:
        job["speculative"] = None
    elif pair == "hybrid":
        options = options | {"hybrid_state": "replay"}
    llm = build(job, "", options or {})
    engine, found = llm.llm_engine, {}
    for load in LOADS:
        decode(engine, "warm-up", load, None)
        whole = medians(decode(engine, "whole", load, None))
        watch = Watch()
        with watch.on(engine):
            parts = medians(decode(engine, "parts", load, watch))
        parts, whole = in_pieces(parts), in_pieces(whole)
        found[load] = {**parts, "step, timed in parts": parts["step"], **whole}
    close(llm)
    return found


def in_turn(pair: str) -> dict[str, list[dict[str, Any]]]:
    """Engine -> what each of its processes measured.

    Raises:
        CalledProcessError: an engine failed; its output stands above.
    """
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in ENGINES}
    environment = engine_environment("v1") | IN_PROCESS | {"OMP_NUM_THREADS": "1"}
    environment |= {"VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR")}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "result.json")
        for turn in range(TURNS):
            for kind in list(ENGINES)[:: 1 if turn % 2 == 0 else -1]:
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.zero_length",
                    "--engine",
                    pair,
                    kind,
                    str(out),
                ]
                subprocess.run(command, env=environment, check=True)
                found[kind].append(json.loads(out.read_text()))
    return found


def summary(found: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, dict[str, float]]]:
    """Load -> part -> engine -> milliseconds a step, the median of its turns."""
    table: dict[str, dict[str, dict[str, float]]] = {}
    for load in LOADS:
        parts = {part for turns in found.values() for turn in turns for part in turn[load]} - {PIECE}
        piece = statistics.median(turn[load][PIECE] for turns in found.values() for turn in turns)
        table[load] = {
            part: {
                kind: round(piece * statistics.median(turn[load].get(part, 0.0) for turn in turns), 3)
                for kind, turns in found.items()
            }
            for part in sorted(parts)
        }
    return table


def show(pair: str, table: dict[str, dict[str, dict[str, float]]]) -> None:
    for load, parts in table.items():
        print(f"\n{pair}: ms of CPU time a step, requests: {load}".ljust(49), *ENGINES, sep="  ")
        for part, by_engine in parts.items():
            cells = [f"{by_engine[kind]:{len(kind)}.2f}" for kind in ENGINES]
            print(part.ljust(48), *cells, sep="  ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", choices=PAIRS, help="one of them; default: both")
    parser.add_argument("--write", action="store_true", help="write the figures under results/")
    parser.add_argument("--engine", nargs=3, metavar=("PAIR", "KIND", "RESULT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        pair, kind, result = arguments.engine
        Path(result).write_text(json.dumps(measure(pair, kind)))
        return
    tables = {pair: summary(in_turn(pair)) for pair in PAIRS if arguments.pair in (None, pair)}
    for pair, table in tables.items():
        show(pair, table)
    if arguments.write:
        document = {"command": " ".join(["python -m benchmarks.zero_length", *sys.argv[1:]]),
                    "machine": machine(), "turns": TURNS, "tokens": TOKENS}  # fmt: skip
        RESULT.write_text(json.dumps(document | {"milliseconds": tables}, indent=1) + "\n")


if __name__ == "__main__":
    main()
