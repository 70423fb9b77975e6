# SPDX-License-Identifier: Apache-2.0
"""Tokens per second, queueing, preemptions and time to the first token of Qwen3.6-27B with DFlash, over
clients, by vLLM's real scheduler on a virtual clock.

    python -m benchmarks.virtual_clock            # all cells, by benchmarks/step_model
    python -m benchmarks.virtual_clock --only H100,1024 --times report.json    # or a selftest's

No GPU, no weights. The same release of vLLM gives the same digits in every run: `digest` covers every
step. Tokens per second settle early. Waits settle where `answers` reach `clients`: else take --longer.
Memory is what `vllm-eagle plan` leaves for the KV cache. Accepted drafts are drawn by RATES.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

if __name__ == "__main__":  # before vLLM is imported; tests, which import this file, keep theirs
    os.environ.update(VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1", VLLM_CPU_KVCACHE_SPACE="1")
    os.environ["HF_HUB_OFFLINE"] = "1"

import pytest

from benchmarks.machine import machine
from benchmarks.step_model import GPUS, RATES, Gpu, Modelled, StepTimes, pair_of, read_times
from tests.support.process_group import single_process_group
from tests.support.published import Published, materialise, published
from tests.support.virtual_clock import Clients, Loop, Served, plan_engine
from tests.unit.memory.built_model import Builder
from tests.unit.memory.configs import GIB_27B, config
from vllm_eagle_ext.errors import EagleExtError
from vllm_eagle_ext.plan.run import Plan, PlanRequest, run_plans

RESULTS = Path(__file__).parent / "results" / "virtual_clock"
ANSWER = 512
SCHEMES = (("none", 0), ("per_token", 3), ("replay", 3), ("per_token", 7), ("replay", 7))
STEPS = {0: 1600, 3: 700, 7: 600}  # by K: an answer takes some 512, 177 and 136 of them
DRAFTS = ("z-lab", "five full layers")


class Cell(NamedTuple):
    gpu: str
    prompt: int
    clients: int
    draft: str
    scheme: str
    k: int


def cells(only: str) -> Iterator[Cell]:
    wanted = set(filter(None, only.split(",")))
    for gpu in GPUS:
        for prompt in (1024, 8192):
            is_main = (gpu, prompt) == ("H100", 1024)
            for clients in (8, 32, 128):
                for draft in DRAFTS if is_main and clients > 8 else DRAFTS[:1]:
                    for scheme, k in SCHEMES if draft == DRAFTS[0] else SCHEMES[1:]:
                        cell = Cell(gpu, prompt, clients, draft, scheme, k)
                        if wanted <= set(map(str, cell)):
                            yield cell


@cache
def draft_of(name: str) -> Published:
    (draft,) = (d for d in published() if d.slug == "zlab_qwen3_6_27b")
    if name == DRAFTS[0]:
        return draft
    kinds = ["full_attention"] * draft.config["num_hidden_layers"]
    return replace(draft, config=draft.config | {"layer_types": kinds})


def plan_of(cell: Cell, folder: Path) -> Plan:
    """Plan the memory as `vllm-eagle plan` does, without a draft for K = 0."""
    target = folder / "target.json"
    target.write_text(json.dumps(config("qwen3_6_27b")), encoding="utf-8")
    there = folder / cell.draft
    there.mkdir(exist_ok=True)
    draft = str(materialise(draft_of(cell.draft), there)) if cell.k else None
    request = PlanRequest(
        target=str(target), draft=draft, gpu_mem=GPUS[cell.gpu].gib, platform="cuda:h100",
        max_model_len=cell.prompt + ANSWER + 64, weights_gib=GIB_27B,
    )  # fmt: skip
    (plan,) = run_plans(request, [max(cell.k, 1)])
    return plan


class Runner:
    """Runs cells in one process, whose config and plans are made once."""

    def __init__(self, folder: Path, build: Builder, file: Path | None) -> None:
        self.folder, self.build = folder, build
        drafted = plan_of(Cell("H100", 1024, 8, DRAFTS[0], "replay", 3), folder)
        self.pair = pair_of(
            drafted.draft, draft_of(DRAFTS[0]), config("qwen3_6_27b"), [drafted.target.attention],
            drafted.target.recurrent,
        )  # fmt: skip
        self.measured = read_times(file, self.pair) if file else None

    def has_times_of(self, cell: Cell) -> bool:
        """Tell whether the file, if one is given, is of the cell's GPU; a bench's may be of any."""
        return not isinstance(self.measured, Modelled) or self.measured.gpu.name == GPUS[cell.gpu].name

    def times(self, gpu: Gpu, plan: Plan) -> StepTimes:
        draft = plan.draft
        layers = draft.layers if draft else ()
        return self.measured or Modelled(replace(self.pair, draft_layers=layers), gpu)

    def run(self, cell: Cell, steps: int) -> dict[str, Any]:
        plan = plan_of(cell, self.folder)
        share = plan.replay if cell.scheme == "replay" else plan.per_token
        served = Served(
            scheme=cell.scheme, k=cell.k, draft=tuple(plan.draft_layers),
            budget=plan.budget, length=plan.setting.max_model_len,
        )  # fmt: skip
        engine = plan_engine(self.build, served)
        times = self.times(GPUS[cell.gpu], plan)
        clients = Clients(number=cell.clients, prompt=cell.prompt, answer=ANSWER, rates=RATES)
        loop = Loop(engine, clients, lambda load: times.seconds(cell.scheme, cell.k, load))
        figures = loop.figures(steps)
        groups = {f"{kind} of {n}": count for (kind, n), count in Counter(engine.groups).items()}
        fit = share.fit(plan.budget) if cell.k else None
        return cell._asdict() | asdict(figures) | {"groups": groups, "plan_fits": fit}


def main(
    only: Annotated[str, typer.Option(help="Words of the cells to run, such as H100,1024,replay.")] = "",
    times: Annotated[
        Path | None,
        typer.Option(
            help="JSON of selftest, or of bench --schedule: its times are those of both schemes."
        ),
    ] = None,
    longer: Annotated[int, typer.Option(min=1, help="Times as many steps, for long queues.")] = 1,
    out: Annotated[Path | None, typer.Option(help="JSON to write.")] = None,
) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        with single_process_group(folder):
            try:
                runner = Runner(folder, Builder(folder, patch), times)
                for cell in filter(runner.has_times_of, cells(only)):
                    rows.append(runner.run(cell, longer * STEPS[cell.k]))
                    print(json.dumps(rows[-1]), flush=True)
            except EagleExtError as error:
                raise SystemExit(str(error)) from None
    digest = hashlib.sha256("".join(row["digest"] for row in rows).encode()).hexdigest()
    release = machine().get("vllm-cpu", machine().get("vllm", ""))
    written = {
        "command": " ".join(["python -m benchmarks.virtual_clock", *sys.argv[1:]]),
        "times": times.name if times else "kernel model",
        "machine": machine(),
        "digest": digest,
        "cells": rows,
    }
    path = out or RESULTS / f"{'-'.join([release, *filter(None, only.split(','))])}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    print(f"{path.name}: {len(rows)} cells, digest {digest}")


if __name__ == "__main__":
    typer.run(main)
