# SPDX-License-Identifier: Apache-2.0
"""What a decode step costs where weights dominate: no draft, stock vLLM and this package by K and load.

    python -m benchmarks.step_times [--contexts 200,1500,8000] [--rounds 3] [--write]

A CPU's step grows with its rows once arithmetic takes longer than reading the weights. That number of
rows, the ridge, is measured first; loads are multiples of it, so that a row of the table means much the
same on another machine. Target and draft are those of `gpu_shapes --scale cpu`: real widths, dummy
weights. vLLM's DecodeBenchConnector takes prompts as computed. Drafts are accepted by lot. Three engines
of one core each take turns; every ratio is of one round. Seconds are those of the engine's core, which
other work on a machine stretches less than those of the clock. `--write` puts the table in the page.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated, Any, ClassVar

import torch
import typer

from benchmarks.gpu_shapes import dense_pair
from benchmarks.machine import machine
from benchmarks.shapes.dense import LLAMA_8B
from vllm_eagle_ext.measure.engine.client import PROBE, EngineProcess
from vllm_eagle_ext.measure.engine.probe import SCHEDULER, schedule_of
from vllm_eagle_ext.memory.device import LoadedKernels

RESULT = Path(__file__).parent / "results" / "step_times.json"
PAGE, BLOCK = Path("docs/performance.md"), r"(?<=<!-- steps:begin -->\n).*?(?=<!-- steps:end -->)"
BUILD = Path("build/step_times")
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's seconds are those of its one process
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
SHAPE = LLAMA_8B["cpu"]
LOADS, KS = (0.1, 0.5, 2.0), (1, 2, 4, 7)  # of the ridge; drafts per step
# Per position: published for an EAGLE-3 draft of Llama-3.1-8B on MT-Bench (vLLM's CI, K = 3); from the
# fourth on .68 of the one before.
RATES = (0.730, 0.521, 0.355, 0.242, 0.164, 0.112, 0.076)
STEPS, BUDGET_S, GROWTH = 6, 1.5, 128  # per cell; tokens that a text may grow by
KINDS, NOT_RUN = ("none", "stock", "ours"), "not run"


class StepProcess(EngineProcess):
    PROGRAM: ClassVar[str] = "benchmarks.step_times_engine"

    def cell(self, prompts: list[list[int]], k: int) -> dict[str, list[float]]:
        asked = {"prompts": prompts, "k": k, "steps": STEPS, "budget_s": BUDGET_S}
        times: dict[str, list[float]] = self.ask({"do": "cell", **asked})
        return times


def data_type() -> torch.dtype:
    return torch.bfloat16 if LoadedKernels().bf16 else torch.float32


def ridge(dtype: torch.dtype) -> float:
    """Rows at which the arithmetic of a product takes as long as its weights; on one core."""
    from vllm import _custom_ops as ops

    torch.set_num_threads(1)
    weights = [torch.randn(SHAPE.inner, SHAPE.width).to(dtype) for _ in range(24)]  # beyond the caches
    handles = [ops.create_onednn_mm(weight.t(), 32) for weight in weights]

    def seconds(rows: int) -> float:
        times, given = [], torch.randn(rows, SHAPE.width).to(dtype)
        for _ in range(6):
            began = time.process_time()
            for handle in handles:
                ops.onednn_mm(handle, given, None)
            times.append(time.process_time() - began)
        return min(times)

    per_row = (seconds(256) - seconds(128)) / 128
    return min(seconds(1), seconds(4)) / per_row


def token_bytes(dtype: torch.dtype) -> int:
    """Bytes of a token in the KV cache of target and draft."""
    return 2 * (SHAPE.layers + 1) * SHAPE.kv_heads * SHAPE.head_dim * dtype.itemsize


def arguments(kind: str, dtype: torch.dtype, *, most: int, length: int, cache: int) -> dict[str, Any]:
    pair = dense_pair(SHAPE, Path("build/shapes/cpu"))
    args: dict[str, Any] = {
        "model": str(pair.target), "load_format": "dummy", "skip_tokenizer_init": True, "seed": 0,
        "dtype": str(dtype).removeprefix("torch."), "enforce_eager": True, "max_model_len": length,
        "max_num_seqs": most, "enable_prefix_caching": False, "kv_cache_memory_bytes": cache,
        "gpu_memory_utilization": 0.1, "worker_extension_cls": PROBE,
        "kv_transfer_config": {
            "kv_connector": "DecodeBenchConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {"startup_fill": True},
        },
    }  # fmt: skip
    if kind != "none":
        args["scheduler_cls"] = SCHEDULER
        args["speculative_config"] = {
            "method": "eagle3", "model": str(pair.drafts[1]), "num_speculative_tokens": max(KS),
            "draft_load_config": {"load_format": "auto"},
            "num_speculative_tokens_per_batch_size": schedule_of(KS),
            "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": list(RATES),
        }  # fmt: skip
    return args


def order(number: int) -> list[tuple[str, int]]:
    """Engines and K of a round: no draft at both ends, stock next to ours, every second in reverse."""
    pairs = [(kind, k) for k in KS for kind in ("ours", "stock")]
    return [("none", 0), *(pairs if number % 2 else pairs[::-1]), ("none", 0)]


def fits(context: int, requests: int, cache: int, dtype: torch.dtype) -> bool:
    return requests * (context + GROWTH) * token_bytes(dtype) <= cache


def prompts_of(context: int, requests: int) -> list[list[int]]:
    draw = random.Random(requests)
    return [[draw.randrange(SHAPE.vocabulary) for _ in range(context)] for _ in range(requests)]


def measure(
    result: dict[str, Any], contexts: list[int], rounds: int, cache: int, dtype: torch.dtype
) -> None:
    """Time every cell that the cache holds, round by round; the result is written after each load."""
    length, most = max(contexts) + GROWTH, max(result["loads"])
    visits = result["visits"] = []
    with ExitStack() as stack:
        engines = {}
        for kind in KINDS:
            asked = arguments(kind, dtype, most=most, length=length, cache=cache)
            process = StepProcess(asked, BUILD / f"{kind}.log", name=kind, plugin=kind != "stock")
            engines[kind] = stack.enter_context(process)
            if kind != "none":
                process.rpc("eagle_ext_synthetic_acceptance")
        for number, context, requests in product(range(rounds), contexts, result["loads"]):
            if not fits(context, requests, cache, dtype):
                continue
            for kind, k in order(number):
                times = engines[kind].cell(prompts_of(context, requests), k)
                place = {"round": number, "context": context, "requests": requests}
                visits.append(place | {"kind": kind, "k": k} | times)
                print(*visits[-1].values(), flush=True)
            RESULT.write_text(json.dumps(result, default=lambda x: round(x, 5)) + "\n")


def steps(result: dict[str, Any], clock: str) -> dict[tuple[int, int, str, int], dict[int, float]]:
    """By context, requests, kind and K: the median step of each round, in seconds."""
    times: dict[Any, dict[int, list[float]]] = {}
    for visit in result["visits"]:
        key = visit["context"], visit["requests"], visit["kind"], visit["k"]
        times.setdefault(key, {}).setdefault(visit["round"], []).extend(visit[clock])
    return {key: {n: median(of) for n, of in rounds.items()} for key, rounds in times.items()}


def ratios(result: dict[str, Any], context: int, requests: int, kind: str, k: int) -> list[float]:
    """Give the step over that without a draft, of each round in which both were timed."""
    medians = steps(result, "cpu")
    own, plain = (medians.get((context, requests, *variant), {}) for variant in ((kind, k), ("none", 0)))
    return [own[number] / plain[number] for number in own.keys() & plain.keys()]


def table(result: dict[str, Any]) -> str:
    """Compose the page's table: steps over no draft's, each the break-even acceptance of its K."""
    tokens = {k: 1 + sum(RATES[:k]) for k in KS}
    ks, lengths = ("/".join(map(str, KS)), "/".join(f"{tokens[k]:.2f}" for k in KS))
    lines = [
        f"| context | requests | no draft, ms | stock, K={ks} | ours, K={ks} |",
        "|---|---|---|---|---|",
    ]
    lines.append(f"| | | tokens per step: | {lengths} | {lengths} |")
    for context, (share, requests) in product(
        result["contexts"], zip(LOADS, result["loads"], strict=True)
    ):
        plain = steps(result, "cpu").get((context, requests, "none", 0))
        cells = [f"{median(plain.values()) * 1e3:.0f}" if plain else NOT_RUN]
        for kind in ("stock", "ours"):
            by_k = {k: ratios(result, context, requests, kind, k) for k in KS}
            each = [_cell(of, tokens[k]) if of else NOT_RUN for k, of in by_k.items()]
            cells.append("/".join(each) if any(by_k.values()) else NOT_RUN)
        lines.append(f"| {context:,} | {requests} ({share:g}) | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(of_rounds: Sequence[float], tokens: float) -> str:
    """Make the median bold where a draft pays in every round."""
    ratio = median(of_rounds)
    return f"**{ratio:.2f}**" if max(of_rounds) < tokens else f"{ratio:.2f}"


def main(
    contexts: Annotated[
        str, typer.Option(help="Tokens before the first drafted one.")
    ] = "200,1500,8000",
    rounds: Annotated[int, typer.Option(help="Visits of each cell; no draft has two per round.")] = 3,
    cache_gib: Annotated[float, typer.Option(help="KV cache of each of the three engines.")] = 2.75,
    write: Annotated[bool, typer.Option(help="Put the table of the last result in the page.")] = False,
) -> None:
    if write:
        block = table(json.loads(RESULT.read_text()))
        text = re.sub(BLOCK, lambda _: f"{block}\n", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
        PAGE.write_text(text, encoding="utf-8")
        return
    os.environ.update(ENVIRONMENT)
    BUILD.mkdir(parents=True, exist_ok=True)
    dtype = data_type()
    rows = ridge(dtype)
    asked = sorted(int(part) for part in contexts.split(","))
    result: dict[str, Any] = {
        "command": "python -m benchmarks.step_times " + " ".join(sys.argv[1:]),
        "machine": machine() | {"load_average": os.getloadavg()},
        "dtype": str(dtype), "ridge": round(rows, 1), "contexts": asked,
        "loads": [max(1, round(load * rows)) for load in LOADS],
    }  # fmt: skip
    measure(result, asked, rounds, int(cache_gib * 2**30), dtype)
    print(table(result))


if __name__ == "__main__":
    typer.run(main)
