# SPDX-License-Identifier: Apache-2.0
"""What surrounds the kernels in an engine: CUDA graphs, a side stream, many cache groups.

Each is compared with the same step run plainly, every byte of the cache and every output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from vllm_eagle_ext.replay.ops.types import Align, Batch, Plan
from vllm_eagle_ext.replay.self_check.compared import FOUR, Kernels
from vllm_eagle_ext.replay.self_check.figures import KernelCheck, Part, compare_bits
from vllm_eagle_ext.replay.self_check.step import MadeStep, Shapes, copy_of, empty_plan, make_step

GROUPS = 48  # Qwen3.6-27B with its published DFlash draft: a cache group for each gated delta net


@torch.inference_mode()
def check_in_a_graph(kernels: Kernels, shapes: Shapes, device: torch.device) -> KernelCheck:
    """Capture verify and commit on one row per request, replay them on one step and, in the same memory,
    on another, whose requests have other numbers of rows: vLLM captures graphs for varying widths so."""

    def parts() -> list[Part]:
        step, other = (make_step(shapes, device, FOUR, seed) for seed in (0, 50))
        out, run = _plain_run(kernels, shapes, step)
        first, second = (copy_of(each, shapes) for each in (step, other))
        graph = torch.cuda.CUDAGraph()
        run()  # compiles, and fills what is filled once
        _narrow(step)
        with torch.cuda.graph(graph):
            run()
        found = []
        for name, fresh in (("in a graph", first), ("with other rows", second)):
            _refill(step, fresh)
            out.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            found += _beside_plain_run(name, kernels, shapes, fresh, step, out)
        return found

    return _result("CUDA graph", kernels, shapes, parts)


@torch.inference_mode()
def check_on_a_side_stream(kernels: Kernels, shapes: Shapes, device: torch.device) -> KernelCheck:
    """Commit on a stream of its own, while the main one works and then waits for it."""

    def parts() -> list[Part]:
        step = make_step(shapes, device)
        plain = copy_of(step, shapes)
        out, run_step = _plain_run(kernels, shapes, copy_of(step, shapes))
        run_step()  # what is compiled on the side stream would not be beside anything
        side, main = torch.cuda.Stream(), torch.cuda.current_stream()
        commit = _commit(kernels, shapes, step)
        batch = kernels.prepare(step.batch, shapes.T)
        kernels.recurrence.verify(step.rows, step.gating, step.cache, batch, out)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            commit()
        busy = torch.empty(1 << 22, device=device)
        for _ in range(20):
            busy.normal_(generator=torch.Generator(device=device))
        main.wait_stream(side)
        found = _beside_plain_run("side stream", kernels, shapes, plain, step, out)
        torch.cuda.synchronize()
        return found

    return _result("side stream", kernels, shapes, parts)


@torch.inference_mode()
def check_groups(
    kernels: Kernels, shapes: Shapes, device: torch.device, groups: int = GROUPS
) -> KernelCheck:
    """Commit a layer of each of many cache groups at once, and one after the other."""

    def parts() -> list[Part]:
        together = [make_step(shapes, device, FOUR, seed) for seed in range(groups)]
        alone = [copy_of(step, shapes) for step in together]
        first = together[0]
        blocks = torch.stack([step.batch.state_blocks for step in together])
        assert first.batch.scratch is not None
        scratch = first.batch.scratch.expand(groups, -1).contiguous()
        batch = kernels.prepare(Batch(blocks, first.batch.starts, scratch), shapes.T)
        for number, step in enumerate(together):
            mine = batch.of_group(number)
            kernels.recurrence.verify(
                step.rows, step.gating, step.cache, mine, torch.empty_like(step.rows.value)
            )
        align = Align.of(
            [step.align.tables.tensors[0] for step in together],
            first.align.num_computed,
            first.align.block_size,
        )
        plan = Plan(*(part.expand(groups, -1).contiguous() for part in empty_plan(first)))
        kernels.recurrence.plan(batch, first.num_sampled, None, align, plan)
        layers = [(step.cache, step.gating, number) for number, step in enumerate(together)]
        kernels.recurrence.ApplyPlan(layers, shapes.W - 1)(batch, plan)
        for step in alone:
            _plain_run(kernels, shapes, step)[1]()
        pairs = [_kept(a, b) for a, b in zip(together, alone, strict=True)]
        mine_bytes, their_bytes = (torch.stack(part) for part in zip(*pairs, strict=True))
        return [compare_bits("cache", mine_bytes, their_bytes)]

    return _result(f"{groups} cache groups", kernels, shapes, parts)


def _result(name: str, kernels: Kernels, shapes: Shapes, parts: Callable[[], list[Part]]) -> KernelCheck:
    plain = KernelCheck(kernels=f"{name}: {kernels.name}", shapes=str(shapes))
    try:
        return replace(plain, parts=tuple(parts()))
    except Exception as raised:  # noqa: BLE001 - the next check must have its turn
        return replace(plain, error=f"{type(raised).__name__}: {str(raised).partition(chr(10))[0]}")


def _commit(kernels: Kernels, shapes: Shapes, step: MadeStep) -> Callable[[], None]:
    plan = empty_plan(step)
    batch = kernels.prepare(step.batch, shapes.T)
    apply = kernels.recurrence.ApplyPlan([(step.cache, step.gating, 0)], shapes.W - 1)

    def run() -> None:
        kernels.recurrence.plan(batch, step.num_sampled, None, step.align, plan)
        apply(batch, plan)

    return run


def _plain_run(
    kernels: Kernels, shapes: Shapes, step: MadeStep
) -> tuple[torch.Tensor, Callable[[], None]]:
    """Outputs, and what computes them and commits the step."""
    out, commit = torch.full_like(step.rows.value, float("nan")), _commit(kernels, shapes, step)
    batch = kernels.prepare(step.batch, shapes.T)

    def run() -> None:
        kernels.recurrence.verify(step.rows, step.gating, step.cache, batch, out)
        commit()

    return out, run


def _narrow(step: MadeStep) -> None:
    """Leave each request its first row; the rows behind them belong to nobody."""
    starts = step.batch.starts
    starts.copy_(torch.arange(len(starts), dtype=starts.dtype, device=starts.device))
    step.num_sampled.fill_(1)


def _refill(step: MadeStep, fresh: MadeStep) -> None:
    """Give a step the content of another one of the same sizes, where it stands."""
    for mine, theirs in zip(_inputs(step), _inputs(fresh), strict=True):
        mine.copy_(theirs)
    step.whole.copy_(fresh.whole)


def _inputs(step: MadeStep) -> tuple[torch.Tensor, ...]:
    """What a graph reads; scratch blocks, and how many tokens were computed, are those of all steps."""
    batch = step.batch
    return (
        *step.rows, *step.gating, batch.state_blocks, batch.starts, step.num_sampled,
        *step.align.tables.tensors,
    )  # fmt: skip


def _beside_plain_run(
    name: str, kernels: Kernels, shapes: Shapes, fresh: MadeStep, step: MadeStep, out: torch.Tensor
) -> list[Part]:
    """Compare with the same step run plainly."""
    expected, run = _plain_run(kernels, shapes, fresh)
    run()
    count = fresh.num_rows
    return [
        compare_bits(f"outputs {name}", out[:count], expected[:count]),
        compare_bits(f"cache {name}", *_kept(step, fresh)),
    ]


def _kept(step: MadeStep, other: MadeStep) -> tuple[torch.Tensor, torch.Tensor]:
    """The bytes of both without scratch blocks."""
    kept = [block for block in range(len(step.whole)) if block not in step.scratch]
    return step.whole[kept], other.whole[kept]
