# SPDX-License-Identifier: Apache-2.0
"""The same weights in llama.cpp, in plain vLLM and with this package, on a CPU.

    python -m examples.smollm2.train build/smollm2/rows.jsonl --native --out build/smollm2/native \
        --start examples/smollm2/draft --stop 200
    python -m benchmarks.side_by_side build/smollm2/native

All engines are up at the same time, and groups of the 90 held-out prompts go through them in turn.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.machine import machine
from examples.demo.__main__ import ENVIRONMENT, LOADS, Turns
from examples.demo.report import Row, acceptance
from examples.dtype import choose_dtype
from examples.smollm2 import held_out
from examples.smollm2.fetch import FOLDER, fetch
from examples.smollm2.llama_cpp import CONTEXT, LLAMA, PACKAGES, build, llama_server, to_gguf
from vllm_eagle_ext.measure.engine.client import EngineProcess
from vllm_eagle_ext.measure.engine.load import Load
from vllm_eagle_ext.measure.engine.machine import OtherWork

# Engines, and the one whose speed without a draft each is compared with.
PLAIN = {"llama.cpp": "llama.cpp, no draft", "plain vLLM": "vLLM, no draft", "ours": "vLLM, no draft"}


def main(
    draft: Annotated[Path, typer.Argument(help="A native draft of SmolLM2-135M.")],
    k: Annotated[int, typer.Option("-k", min=1, help="Drafted tokens per step.")] = 2,
    minutes: Annotated[float, typer.Option(help="Time for both loads, without the starts.")] = 10,
    max_tokens: Annotated[int, typer.Option(min=16, help="Tokens of an answer.")] = 64,
    out: Annotated[Path, typer.Option(help="Folder of report and picture.")] = Path("build"),
) -> None:
    """Compare acceptance and speed, one request and eight at a time."""
    build()
    target, dtype = fetch(FOLDER), choose_dtype()
    models = [to_gguf(folder, target, dtype) for folder in (target, draft)]
    common: dict[str, Any] = {
        "model": str(target), "dtype": dtype, "enforce_eager": True, "max_model_len": CONTEXT,
        "max_num_seqs": max(LOADS), "gpu_memory_utilization": 0.25,
    }  # fmt: skip
    config = {"method": "eagle3", "model": str(draft), "num_speculative_tokens": k}
    drafting, loads = common | {"speculative_config": config}, {}
    with ExitStack() as running, OtherWork().during() as others:
        start = running.enter_context
        engines: dict[str, Any] = {
            "llama.cpp, no draft": start(llama_server(18080, k, models[0], None)),
            "llama.cpp": start(llama_server(18081, k, *models)),
            "vLLM, no draft": start(EngineProcess(common, LLAMA / "none.log", plugin=False)),
            "plain vLLM": start(EngineProcess(drafting, LLAMA / "stock.log", plugin=False)),
            "ours": start(EngineProcess(drafting, LLAMA / "ours.log")),
        }
        for requests in LOADS:
            prompts = held_out.read(target)
            for engine in engines.values():  # warm-up
                engine.load(Load([prompts[0].ids] * requests, requests, 8, ignore_eos=True))
            until = time.monotonic() + 60 * minutes / len(LOADS)
            rows, _ = Turns(engines, max_tokens, ignore_eos=False).run(iter(prompts), requests, until)
            loads[str(requests)] = summary({row.name: row for row in rows})
            print(json.dumps(loads, indent=1), flush=True)
    report = {
        "machine": machine(), "packages": PACKAGES, "k": k, "dtype": dtype, "loads": loads,
        "draft": json.loads((draft / "report.json").read_text()), "other_cores": round(others.cores, 2),
    }  # fmt: skip
    (out / "side_by_side.json").write_text(json.dumps(report, indent=1) + "\n")
    picture(loads, out / "side_by_side.png")


def summary(rows: dict[str, Row]) -> dict[str, dict[str, Any]]:
    """Return, for each engine, speed, gain with its quartiles, acceptance, and equal texts."""
    result = {}
    for name, plain in PLAIN.items():
        row, base = rows[name], rows[plain]
        result[name] = {
            "no_draft": round(base.tokens_per_second, 1), "draft": round(row.tokens_per_second, 1),
            "gain": round(row.speed_up(base), 3),
            "quartiles": [round(quartile, 3) for quartile in row.quartiles(base)],
            "acceptance": [round(share, 3) for share in acceptance(row.answers)],
            "equal": sum(a == b for a, b in zip(row.texts, base.texts, strict=True)),
            "texts": len(row.texts),
        }  # fmt: skip
    return result


def picture(loads: dict[str, dict[str, dict[str, Any]]], path: Path) -> None:
    """Draw speed without and with a draft, each engine's gain above it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained", dpi=130)
    for panel, (requests, engines) in zip(figure.subplots(1, len(loads)), loads.items(), strict=True):
        for place, row in enumerate(engines.values()):
            panel.bar(place - 0.2, row["no_draft"], 0.38, color="#7f7f7f")
            panel.bar(place + 0.2, row["draft"], 0.38, color="#4c78a8")
            panel.text(place + 0.2, row["draft"], f"{row['gain']:.2f}x", ha="center", va="bottom")
        panel.set_xticks(range(len(engines)), list(engines))
        panel.set_title(f"{requests} at a time; grey: no draft")
        panel.set_ylabel("tokens/s")
    figure.savefig(path)


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT | os.environ)
    typer.run(main)
