# SPDX-License-Identifier: Apache-2.0
"""Times verify and commit of both schemes: replay's kernels, and vLLM's own of the per-token scheme.

vLLM has two of them: one of Triton for all K, and for K <= 7 one of CUDA, with the gated norm
that follows ("fused").

On a GPU each scheme's step is captured in a CUDA graph, as serving captures verify, and its replays are
timed by the device's clock: what the host takes to launch kernels is no part of it. Runs are
interleaved, and the ratio of each pair is taken. Several layers take turns, as many as it takes for
states to come from memory as they do in a model.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from vllm_eagle_ext.memory.state_blocks import record_width
from vllm_eagle_ext.replay.ops.types import Batch, CommitPlan, Gating, Layer, Rows, StateCache
from vllm_eagle_ext.replay.self_check.compared import Kernels
from vllm_eagle_ext.replay.self_check.step import Shapes

PAIRS = 7
LAYERS, MOST_LAYERS = 4, 48  # 48 of gated delta nets has Qwen3.6-27B
REPLAYS = 10  # of a graph, one after the other
CACHES = 4  # how many times the second-level cache the states of all layers take
FUSED_ROWS = 8  # that vLLM's fused kernel takes of a request at most
COPIED = 1 << 30  # bytes of the copy that tells the bandwidth

Run = Callable[[], None]


class BothSchemes:
    """On the same rows. State blocks of a request: per-token scheme T, replay 1 and one of scratch."""

    def __init__(self, shapes: Shapes, batch: int, device: str, layers: int) -> None:
        self.shapes, self.T, self.batch, self.device = shapes, shapes.T, batch, device
        H, HV, width = shapes.H, shapes.HV, shapes.DK
        rows = batch * self.T
        query, key, value = (self._noise(rows, count, width) for count in (H, H, HV))
        self.rows = Rows(query, key, value, self._noise(rows, HV), self._noise(rows, HV))
        self.gating = Gating(self._noise(HV).float(), self._noise(HV))
        self.out = torch.empty_like(self.rows.value)
        self.starts = torch.arange(0, rows + 1, self.T, dtype=torch.int32, device=device)
        self.per_token_states = [self._states(1 + rows) for _ in range(layers)]
        blocks = 1 + 2 * batch
        self.layers = [
            StateCache(
                self._noise(blocks, shapes.channels, shapes.W + self.T - 2),
                self._states(blocks),
                self._noise(blocks, self.T, record_width(H, width, HV, width)),
            )
            for _ in range(layers)
        ]
        first = torch.arange(batch, dtype=torch.int32, device=device)
        self.replay_batch = Batch(1 + first, self.starts, 1 + batch + first)
        self.table = 1 + torch.arange(rows, dtype=torch.int32, device=device).view(batch, self.T)

    def _noise(self, *size: int) -> torch.Tensor:
        generator = torch.Generator(device=self.device).manual_seed(0)
        return torch.randn(size, generator=generator, device=self.device).bfloat16()

    def _states(self, blocks: int) -> torch.Tensor:
        size = (blocks, self.shapes.HV, self.shapes.DV, self.shapes.DK)
        return torch.zeros(size, device=self.device, dtype=self.shapes.state)

    def counts(self, accepted: int) -> torch.Tensor:
        return torch.full((self.batch,), accepted, dtype=torch.int32, device=self.device)

    def replay(self, kernels: Kernels, accepted: int) -> Run:
        """Return what verifies and commits a step of all layers."""
        counts, made = self.counts(accepted), kernels.module
        plan = CommitPlan(*torch.zeros(4, self.batch, dtype=torch.int32, device=self.device))
        apply = made.Commit([Layer(cache, self.gating, 0) for cache in self.layers], self.shapes.W - 1)

        def run() -> None:
            batch = kernels.prepare(self.replay_batch, self.T)
            for cache in self.layers:
                made.verify(self.rows, self.gating, cache, batch, self.out)
            made.plan(batch, counts, None, None, plan)
            apply(batch, plan)

        return run

    def per_token(self, kernels: Kernels, accepted: int) -> Run:
        """Return the step of vLLM's scheme, which has no commit."""
        counts = self.counts(accepted)

        def run() -> None:
            for states in self.per_token_states:
                kernels.per_token(self.rows, self.gating, states, self.table, counts, self.starts)

        return run

    def fused(self, accepted: int) -> Run | None:
        """Return that step with vLLM's fused kernel; None where its build or K has none."""
        operator = getattr(torch.ops._C, "fused_gdn_decode_post_conv_mtp", None)
        if operator is None or self.T > FUSED_ROWS:
            return None
        query, key, value, a, b = self.rows
        mixed = torch.cat([part.flatten(1) for part in (query, key, value)], dim=1)
        width, counts = self.shapes.DV, self.counts(accepted)
        norm = torch.ones(width, device=self.device).bfloat16()

        def run() -> None:
            for states in self.per_token_states:
                operator(
                    mixed, a, b, self.gating.A_log, self.gating.dt_bias, self.table, self.starts,
                    counts, states, value, norm, self.out, width**-0.5, 1e-6, "silu",
                )  # fmt: skip

        return run


def layers_for(shapes: Shapes, batch: int, cache_bytes: int) -> int:
    """Say how many layers' states of a batch a device's second-level cache does not hold."""
    state = shapes.HV * shapes.DV * shapes.DK * shapes.state.itemsize
    return min(MOST_LAYERS, max(LAYERS, -(-CACHES * cache_bytes // (batch * state))))


def needed_bytes(shapes: Shapes, batch: int, layers: int) -> int:
    """Return the memory that a Scheme of these sizes takes at most, about."""
    state = shapes.HV * shapes.DV * shapes.DK * torch.float32.itemsize
    row = 2 * (shapes.H + shapes.HV) * shapes.DV * shapes.model.itemsize
    return layers * batch * ((shapes.T + 2) * state + 4 * (shapes.T + 3) * row)


def captured(run: Run) -> Run:
    """Capture a CUDA graph of a run. Returns what replays it."""
    run()  # compiles, which a capture cannot
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    replay: Run = graph.replay
    return replay


def device_seconds(run: Run, times: int = REPLAYS) -> float:
    """Return the seconds of one of several runs by the clock of the GPU, from the first to the last."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / times


@torch.inference_mode()
def compare_times(runs: dict[str, Run]) -> dict[str, Any]:
    """Time all layers' verify and commit together, by names of kernels: milliseconds, and the ratio of
    replay to each other in interleaved pairs, with its range."""
    graphs = {name: captured(run) for name, run in runs.items()}
    for graph in graphs.values():
        device_seconds(graph)
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(PAIRS):
        for name in list(graphs)[:: -1 if turn % 2 else 1]:
            times[name].append(device_seconds(graphs[name]))
    compared: dict[str, Any] = {
        f"{name}_ms": 1e3 * statistics.median(seconds) for name, seconds in times.items()
    }
    for name in times.keys() - {"replay"}:
        ratios = sorted(a / b for a, b in zip(times["replay"], times[name], strict=True))
        suffix = "" if name == "per_token" else f"_to_{name}"
        compared[f"ratio{suffix}"] = statistics.median(ratios)
        compared[f"ratio{suffix}_range"] = [ratios[0], ratios[-1]]
    return compared


def copy_bandwidth() -> float:
    """Return bytes a second that a device-to-device copy reads and writes."""
    source = torch.empty(COPIED, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)

    best = min(device_seconds(copy) for _ in range(3))
    return 2 * source.numel() / best
