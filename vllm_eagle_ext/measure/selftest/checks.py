# SPDX-License-Identifier: Apache-2.0
"""A CUDA graph of verify and commit, which a worker's check at a start leaves out.

Every byte of the cache and every output is compared with the same step run plainly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from vllm_eagle_ext.replay.self_check.compared import STEP_REQUESTS, Kernels
from vllm_eagle_ext.replay.self_check.results import (
    KernelCheck,
    Part,
    compare_bits,
    error_line,
    is_device_lost,
)
from vllm_eagle_ext.replay.self_check.step import MadeStep, Shapes, copy_of, empty_plan, make_step


@torch.inference_mode()
def check_in_a_graph(kernels: Kernels, shapes: Shapes, device: torch.device) -> KernelCheck:
    """Capture verify and commit on one row per request, replay them on one step and, in the same memory,
    on another, whose requests have other numbers of rows: vLLM captures graphs for varying widths so."""

    plain = KernelCheck(kernels=f"CUDA graph: {kernels.name}", shapes=str(shapes))
    try:
        return replace(plain, parts=tuple(_graph_parts(kernels, shapes, device)))
    except Exception as raised:  # noqa: BLE001 - the next check must have its turn
        return replace(plain, error=error_line(raised), device_lost=is_device_lost(raised, device))


def _graph_parts(kernels: Kernels, shapes: Shapes, device: torch.device) -> list[Part]:
    step, other = (make_step(shapes, device, STEP_REQUESTS, seed) for seed in (0, 50))
    out, run = _plain_run(kernels, shapes, step)
    first, second = (copy_of(each, shapes) for each in (step, other))
    graph = torch.cuda.CUDAGraph()
    run()  # compiles, and fills what is filled once
    _narrow(step)
    with torch.cuda.graph(graph):
        run()
    parts = []
    for name, fresh in (("in a graph", first), ("with other rows", second)):
        _refill(step, fresh)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        parts += _beside_plain_run(name, kernels, shapes, fresh, step, out)
    return parts


def _plain_run(
    kernels: Kernels, shapes: Shapes, step: MadeStep
) -> tuple[torch.Tensor, Callable[[], None]]:
    """Return outputs, and what computes them and commits the step."""
    out, plan = torch.full_like(step.rows.value, float("nan")), empty_plan(step)
    batch = kernels.prepare(step.batch, shapes.T)
    apply = kernels.replay.Commit([(step.cache, step.gating, 0)], shapes.W - 1)

    def run() -> None:
        kernels.replay.verify(step.rows, step.gating, step.cache, batch, out)
        kernels.replay.plan(batch, step.num_sampled, None, step.align, plan)
        apply(batch, plan)

    return out, run


def _narrow(step: MadeStep) -> None:
    """Leave each request its first row; the rows after them belong to nobody."""
    starts = step.batch.starts
    starts.copy_(torch.arange(len(starts), dtype=starts.dtype, device=starts.device))
    step.num_sampled.fill_(1)


def _refill(step: MadeStep, fresh: MadeStep) -> None:
    """Give a step the content of another one of the same sizes, where a graph reads it.

    Scratch blocks, and how many tokens were computed, are those of all steps.
    """
    mine, theirs = (
        (*s.rows, *s.gating, s.batch.state_blocks, s.batch.starts, s.num_sampled, s.whole)
        + tuple(s.align.tables.tensors)
        for s in (step, fresh)
    )
    for tensor, other in zip(mine, theirs, strict=True):
        tensor.copy_(other)


def _beside_plain_run(
    name: str, kernels: Kernels, shapes: Shapes, fresh: MadeStep, step: MadeStep, out: torch.Tensor
) -> list[Part]:
    """Compare outputs and cache with those of the same step run plainly."""
    expected, run = _plain_run(kernels, shapes, fresh)
    run()
    count = fresh.num_rows
    kept = [block for block in range(len(step.whole)) if block not in step.scratch]
    return [
        compare_bits(f"outputs {name}", out[:count], expected[:count]),
        compare_bits(f"cache {name}", step.whole[kept], fresh.whole[kept]),
    ]
