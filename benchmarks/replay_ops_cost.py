# SPDX-License-Identifier: Apache-2.0
"""Verify and commit by replay against the per-token scheme: time of the operation, and bytes on a GPU.

    python -m benchmarks.replay_ops_cost            # on a CPU: vLLM's C++ kernel on both sides
    python -m benchmarks.replay_ops_cost --gpu      # Triton kernels, against vLLM's own if it is there

Runs of both are interleaved, and the ratio of each pair is taken. Several layers take turns, so that
states come from memory as they do in a model. Results go to benchmarks/results.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.machine import machine
from vllm_eagle_ext.memory.recorded_inputs import record_width
from vllm_eagle_ext.replay.ops.types import Batch, Gating, Plan, Rows, StateCache

RESULTS = Path(__file__).parent / "results"
PAIRS, LAYERS, WINDOW = 7, 4, 4
# Key heads, value heads, both of width 128, fp32 states, as published.
SHAPES = {"Qwen3.6-27B": (16, 48), "Qwen3.5-9B": (16, 32), "Qwen3.6-35B-A3B": (16, 32)}
WIDTH = 128


class Scheme:
    """Both schemes on the same rows. State blocks of a request: per-token scheme T, replay 1 and one
    of scratch."""

    def __init__(self, heads: tuple[int, int], batch: int, k: int, device: str) -> None:
        self.T, self.batch, self.device = k + 1, batch, device
        H, HV = heads
        rows = batch * self.T
        self.rows = Rows(
            *(self._noise(rows, n, WIDTH) for n in (H, H, HV)),
            self._noise(rows, HV), self._noise(rows, HV),
        )  # fmt: skip
        self.gating = Gating(self._noise(HV).float(), self._noise(HV))
        self.out = torch.empty_like(self.rows.value)
        self.starts = torch.arange(0, rows + 1, self.T, dtype=torch.int32, device=device)
        width = record_width(H, WIDTH, HV, WIDTH)
        channels = (2 * H + HV) * WIDTH
        self.per_token_states = [self._states(1 + rows, HV) for _ in range(LAYERS)]
        self.layers = [
            StateCache(
                self._noise(1 + 2 * batch, channels, WINDOW - 1 + k),
                self._states(1 + 2 * batch, HV),
                self._noise(1 + 2 * batch, self.T, width),
            )
            for _ in range(LAYERS)
        ]
        first = torch.arange(batch, dtype=torch.int32, device=device)
        self.replay_batch = Batch(1 + first, self.starts, 1 + batch + first)
        self.table = 1 + torch.arange(rows, dtype=torch.int32, device=device).view(batch, self.T)

    def _noise(self, *size: int) -> torch.Tensor:
        return torch.randn(size, device=self.device).bfloat16()

    def _states(self, blocks: int, heads: int) -> torch.Tensor:
        return torch.zeros(blocks, heads, WIDTH, WIDTH, device=self.device)

    def plan(self) -> Plan:
        return Plan(*torch.zeros(4, self.batch, dtype=torch.int32, device=self.device))

    def counts(self, accepted: int) -> torch.Tensor:
        return torch.full((self.batch,), accepted, dtype=torch.int32, device=self.device)


def on_cpu(scheme: Scheme, accepted: int) -> tuple[Callable[[], None], Callable[[], None]]:
    from vllm_eagle_ext.replay.ops import cpu

    counts, plan = scheme.counts(accepted), scheme.plan()
    apply = cpu.ApplyPlan([(cache, scheme.gating, 0) for cache in scheme.layers], WINDOW - 1)

    def replay() -> None:
        batch = cpu.prepare(scheme.replay_batch, scheme.T)
        for cache in scheme.layers:
            cpu.verify(scheme.rows, scheme.gating, cache, batch, scheme.out)
        cpu.plan(scheme.replay_batch, counts, None, None, plan)
        apply(batch, plan)

    def per_token() -> None:
        for states in scheme.per_token_states:
            out = cpu._recur(scheme.rows, scheme.gating, states, scheme.table, counts, scheme.starts)
            scheme.out.copy_(out)

    return replay, per_token


def on_gpu(scheme: Scheme, accepted: int) -> tuple[Callable[[], None], Callable[[], None] | None]:
    from vllm_eagle_ext.replay.ops import triton

    counts, plan = scheme.counts(accepted), scheme.plan()
    apply = triton.ApplyPlan([(cache, scheme.gating, 0) for cache in scheme.layers], WINDOW - 1)

    def replay() -> None:
        for cache in scheme.layers:
            triton.verify(scheme.rows, scheme.gating, cache, scheme.replay_batch, scheme.out)
        triton.plan(scheme.replay_batch, counts, None, None, plan)
        apply(scheme.replay_batch, plan)

    try:
        from vllm.third_party.flash_linear_attention.ops import fused_sigmoid_gating
    except ImportError:
        return replay, None

    def per_token() -> None:
        for states in scheme.per_token_states:
            fused_sigmoid_gating.fused_sigmoid_gating_delta_rule_update(
                A_log=scheme.gating.A_log, dt_bias=scheme.gating.dt_bias,
                q=scheme.rows.query[None], k=scheme.rows.key[None], v=scheme.rows.value[None],
                a=scheme.rows.a, b=scheme.rows.b, initial_state=states, inplace_final_state=True,
                cu_seqlens=scheme.starts, ssm_state_indices=scheme.table,
                num_accepted_tokens=counts, use_qk_l2norm_in_kernel=True,
            )  # fmt: skip

    return replay, per_token


def seconds(run: Callable[[], None], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def compare(scheme: Scheme, accepted: int) -> dict[str, Any]:
    """Milliseconds of all layers' verify and commit together, and the ratio of interleaved pairs."""
    replay, per_token = (on_gpu if scheme.device == "cuda" else on_cpu)(scheme, accepted)
    sides = [replay] if per_token is None else [replay, per_token]
    for side in sides:
        seconds(side, scheme.device)
    times: list[list[float]] = [[] for _ in sides]
    for pair in range(PAIRS):
        for i in range(len(sides))[:: -1 if pair % 2 else 1]:
            times[i].append(seconds(sides[i], scheme.device))
    found: dict[str, Any] = {"replay_ms": 1e3 * statistics.median(times[0])}
    if per_token is not None:
        ratios = sorted(a / b for a, b in zip(*times, strict=True))
        found |= {
            "per_token_ms": 1e3 * statistics.median(times[1]),
            "ratio": statistics.median(ratios),
            "ratio_range": [ratios[0], ratios[-1]],
        }
    return found


def floor_ms(heads: tuple[int, int], batch: int, k: int, bandwidth: float) -> float:
    """Two reads and one write of each state and a write and a read of its records, at the copy speed."""
    H, HV = heads
    state = HV * WIDTH * WIDTH * 4
    records = (k + 1) * record_width(H, WIDTH, HV, WIDTH) * 2
    return 1e3 * LAYERS * batch * (3 * state + 2 * records) / bandwidth


def copy_bandwidth() -> float:
    """Bytes a second that a device-to-device copy reads and writes."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    best = min(seconds(lambda: target.copy_(source), "cuda") for _ in range(10))
    return 2 * source.numel() / best


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
    torch.manual_seed(0)
    bandwidth = copy_bandwidth() if gpu else None
    rows = []
    for name, k, batch, accepted in cases(device):
        scheme = Scheme(SHAPES[name], batch, k, device)
        row: dict[str, Any] = {"shape": name, "k": k, "batch": batch, "rows_accepted": accepted}
        row |= compare(scheme, accepted)
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
