# SPDX-License-Identifier: Apache-2.0
"""Times verify and commit of both schemes: replay's kernels, and vLLM's own of the per-token scheme.

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
from vllm_eagle_ext.replay.ops.types import Batch, CommitPlan, Gating, Rows, StateCache
from vllm_eagle_ext.replay.self_check.compared import Kernels

PAIRS, WINDOW = 7, 4
LAYERS, MOST_LAYERS = 4, 48  # 48 of gated delta nets has Qwen3.6-27B
REPLAYS = 10  # of a graph, one after the other
CACHES = 4  # how many times the second-level cache the states of all layers take
WIDTH = 128
STATE_BYTES, ROW_BYTES = 4, 2  # fp32 states, rows in bf16
COPIED = 1 << 30  # bytes of the copy that tells the bandwidth

Run = Callable[[], None]


class Scheme:
    """Both schemes on the same rows. State blocks of a request: per-token scheme T, replay 1 and one
    of scratch."""

    def __init__(
        self, heads: tuple[int, int], batch: int, k: int, device: str, layers: int = LAYERS
    ) -> None:
        self.T, self.batch, self.device = k + 1, batch, device
        H, HV = heads
        rows = batch * self.T
        query, key, value = (self._noise(rows, count, WIDTH) for count in (H, H, HV))
        self.rows = Rows(query, key, value, self._noise(rows, HV), self._noise(rows, HV))
        self.gating = Gating(self._noise(HV).float(), self._noise(HV))
        self.out = torch.empty_like(self.rows.value)
        self.starts = torch.arange(0, rows + 1, self.T, dtype=torch.int32, device=device)
        width = record_width(H, WIDTH, HV, WIDTH)
        channels = (2 * H + HV) * WIDTH
        self.per_token_states = [self._states(1 + rows, HV) for _ in range(layers)]
        self.layers = [
            StateCache(
                self._noise(1 + 2 * batch, channels, WINDOW - 1 + k),
                self._states(1 + 2 * batch, HV),
                self._noise(1 + 2 * batch, self.T, width),
            )
            for _ in range(layers)
        ]
        first = torch.arange(batch, dtype=torch.int32, device=device)
        self.replay_batch = Batch(1 + first, self.starts, 1 + batch + first)
        self.table = 1 + torch.arange(rows, dtype=torch.int32, device=device).view(batch, self.T)

    def _noise(self, *size: int) -> torch.Tensor:
        generator = torch.Generator(device=self.device).manual_seed(0)
        return torch.randn(size, generator=generator, device=self.device).bfloat16()

    def _states(self, blocks: int, heads: int) -> torch.Tensor:
        return torch.zeros(blocks, heads, WIDTH, WIDTH, device=self.device)

    def counts(self, accepted: int) -> torch.Tensor:
        return torch.full((self.batch,), accepted, dtype=torch.int32, device=self.device)

    def replay(self, kernels: Kernels, accepted: int) -> Run:
        """Return what verifies and commits a step of all layers."""
        counts, made = self.counts(accepted), kernels.replay
        plan = CommitPlan(*torch.zeros(4, self.batch, dtype=torch.int32, device=self.device))
        apply = made.Commit([(cache, self.gating, 0) for cache in self.layers], WINDOW - 1)

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


def layers_for(heads: tuple[int, int], batch: int, cache_bytes: int) -> int:
    """Say how many layers' states of a batch a device's second-level cache does not hold."""
    _, HV = heads
    state = HV * WIDTH * WIDTH * STATE_BYTES
    return min(MOST_LAYERS, max(LAYERS, -(-CACHES * cache_bytes // (batch * state))))


def needed_bytes(heads: tuple[int, int], batch: int, k: int, layers: int = LAYERS) -> int:
    """Return the memory that a Scheme of these sizes takes, about."""
    H, HV = heads
    state = HV * WIDTH * WIDTH * STATE_BYTES
    row = (2 * H + 2 * HV) * WIDTH * ROW_BYTES
    return layers * batch * (k + 3) * state + 4 * layers * batch * (k + 4) * row


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
    """Return the seconds of one of several runs by the clock of the GPU.

    They count from the first one's begin to the last's end. The host is ahead of the GPU where a run is
    one launch, as a graph's replay is.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / times


@torch.inference_mode()
def compare_times(replay: Run, per_token: Run) -> dict[str, Any]:
    """Time all layers' verify and commit together: milliseconds, and the ratio of interleaved pairs."""
    graphs = captured(replay), captured(per_token)
    for graph in graphs:
        device_seconds(graph)
    times: list[list[float]] = [[], []]
    for pair in range(PAIRS):
        for i in (0, 1)[:: -1 if pair % 2 else 1]:
            times[i].append(device_seconds(graphs[i]))
    ratios = sorted(a / b for a, b in zip(*times, strict=True))
    return {
        "replay_ms": 1e3 * statistics.median(times[0]),
        "per_token_ms": 1e3 * statistics.median(times[1]),
        "ratio": statistics.median(ratios),
        "ratio_range": [ratios[0], ratios[-1]],
    }


def floor_ms(
    heads: tuple[int, int], batch: int, k: int, bandwidth: float, layers: int = LAYERS
) -> float:
    """Return the milliseconds that the least traffic takes at the copy speed.

    It is two reads and one write of each state, and a write and a read of its records.
    """
    H, HV = heads
    state = HV * WIDTH * WIDTH * STATE_BYTES
    records = (k + 1) * record_width(H, WIDTH, HV, WIDTH) * ROW_BYTES
    return 1e3 * layers * batch * (3 * state + 2 * records) / bandwidth


def copy_bandwidth() -> float:
    """Return bytes a second that a device-to-device copy reads and writes."""
    source = torch.empty(COPIED, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)

    best = min(device_seconds(copy) for _ in range(3))
    return 2 * source.numel() / best
