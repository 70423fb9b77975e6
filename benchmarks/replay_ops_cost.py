# SPDX-License-Identifier: Apache-2.0
"""Verify and commit by replay against the per-token scheme: time of the operation, and bytes on a GPU.

    python -m benchmarks.replay_ops_cost            # on a CPU: vLLM's C++ kernel on both sides
    python -m benchmarks.replay_ops_cost --gpu      # Triton kernels, against vLLM's own if it is there

`measure.selftest.timing` does it, for `vllm-eagle selftest` too. Results go to benchmarks/results.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.machine import machine
from vllm_eagle_ext.measure.selftest.timing import (
    LAYERS,
    PAIRS,
    Scheme,
    compare_times,
    copy_bandwidth,
    floor_ms,
)
from vllm_eagle_ext.replay.self_check.at_start import candidates

RESULTS = Path(__file__).parent / "results"
# Key heads, value heads, both of width 128, fp32 states, as published.
SHAPES = {"Qwen3.6-27B": (16, 48), "Qwen3.5-9B": (16, 32), "Qwen3.6-35B-A3B": (16, 32)}


def cases(device: str) -> Iterator[tuple[str, int, int, int]]:
    if device == "cpu":
        for batch in (1, 8):
            for accepted in (1, 4, 16):
                yield "Qwen3.6-27B", 15, batch, accepted
        return
    for name in SHAPES:
        for k in (7, 15):
            for batch in (1, 8, 32, 128):
                for accepted in (1, (k + 1) // 4, k + 1):
                    yield name, k, batch, accepted


@torch.inference_mode()
def main(gpu: Annotated[bool, typer.Option(help="Measure the Triton kernels.")] = False) -> None:
    device = "cuda" if gpu else "cpu"
    bandwidth = copy_bandwidth() if gpu else None
    rows = []
    for kernels in candidates():
        for name, k, batch, accepted in cases(device):
            scheme = Scheme(SHAPES[name], batch, k, device)
            row: dict[str, Any] = {"kernels": kernels.name, "shape": name, "k": k, "batch": batch}
            row["rows_accepted"] = accepted
            sides = (make(kernels, accepted) for make in (scheme.replay, scheme.per_token))
            row |= compare_times(*sides, device)
            if bandwidth:
                row["floor_ms"] = floor_ms(SHAPES[name], batch, k, bandwidth)
            print(json.dumps(row), flush=True)
            rows.append(row)
    result = {"command": f"python -m benchmarks.replay_ops_cost{' --gpu' if gpu else ''}"}
    result |= {"machine": machine(), "layers": LAYERS, "pairs": PAIRS, "copy_bandwidth": bandwidth}
    path = RESULTS / f"replay_ops_{'gpu' if gpu else 'cpu'}.json"
    path.write_text(json.dumps(result | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
