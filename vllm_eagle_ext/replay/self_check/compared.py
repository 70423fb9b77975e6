# SPDX-License-Identifier: Apache-2.0
"""Runs verify, plan and commit on a made-up step and vLLM's own kernel; compares what they wrote."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from vllm_eagle_ext.replay.ops import reference
from vllm_eagle_ext.replay.ops.types import NULL_BLOCK, Align, Batch, ReplayKernels
from vllm_eagle_ext.replay.self_check.results import (
    KernelCheck,
    Part,
    calling,
    compare_bits,
    compare_error,
    error_line,
    is_device_lost,
    relative_error,
)
from vllm_eagle_ext.replay.self_check.step import (
    MadeStep,
    PerToken,
    PerTokenKernel,
    Shapes,
    copy_of,
    empty_plan,
    make_step,
    run_per_token,
)

# Kernels that sum in another order than vLLM's may err so many times as much as vLLM's own, which is
# itself compared with fp64. Over 256 steps the tests hold them to 1.5; one step of a few rows scatters
# more, and what is broken errs a thousand times as much.
FACTOR = 2.0
# Where vLLM's kernel happens to be nearer than that: the root mean square of one rounding is 0.3 to 0.6
# of the largest one.
ROUNDINGS = 0.5


# Kernels whose tiles depend on the number of requests are checked with one request, and with more value
# heads than this in all requests together.
MANY_HEADS = 128
STEP_REQUESTS = 4  # they make a step with everything in it


class Kernels(NamedTuple):
    """One implementation of the operation, as the check runs it."""

    name: str  # "sequential", "chunked"
    replay: ReplayKernels
    exact: bool  # all bits are to be vLLM's
    prepare: Callable[[Batch, int], Batch]  # `ReplayOps.prepare`
    per_token: PerTokenKernel  # vLLM's own on the same device

    def batches(self, shapes: Shapes) -> tuple[int, ...]:
        """Say how many requests the steps have that show all there is."""
        return (STEP_REQUESTS,) if self.exact else (1, max(STEP_REQUESTS, MANY_HEADS // shapes.HV + 1))


@torch.inference_mode()
def run(kernels: Kernels, shapes: Shapes, device: torch.device, seed: int = 0) -> KernelCheck:
    """Check kernels on made-up steps. Never raises: a kernel that fails is a result, too."""
    started = time.perf_counter()
    parts: tuple[Part, ...] = ()
    error, is_lost = None, False
    try:
        with torch.device("cpu"):  # vLLM builds models where another one is the default
            for requests in kernels.batches(shapes):
                step = make_step(shapes, device, requests, seed)
                parts += tuple(_compare_step(kernels, shapes, step))
    except Exception as raised:  # noqa: BLE001 - whatever it is, these kernels do not serve
        error, is_lost = error_line(raised), is_device_lost(raised, device)
    return KernelCheck(
        kernels=kernels.name, shapes=str(shapes), parts=parts, error=error, device_lost=is_lost,
        milliseconds=1e3 * (time.perf_counter() - started),
    )  # fmt: skip


def _compare_step(kernels: Kernels, shapes: Shapes, step: MadeStep) -> Iterator[Part]:
    device = step.whole.device
    # vLLM's kernel, then ours on the same step.
    with calling("vLLM's own kernel", device):
        theirs = run_per_token(step, kernels.per_token)
    before, plan = copy_of(step, shapes), empty_plan(step)
    out, batch = torch.full_like(step.rows.value, float("nan")), kernels.prepare(step.batch, shapes.T)
    with calling("verify", device):
        kernels.replay.verify(step.rows, step.gating, step.cache, batch, out)
    with calling("plan", device):
        compared = _compare_plans(kernels, step, batch)
        kernels.replay.plan(batch, step.num_sampled, None, step.align, plan)
    yield compared
    if kernels.exact:
        yield _compare_records(step)
    with calling("commit", device):
        commit = kernels.replay.Commit([(step.cache, step.gating, 0)], shapes.W - 1)
        commit(batch, plan)

    # What was written, and what nobody had to write.
    written = list(_written(step))
    yield from (_exact if kernels.exact else _bounded)(step, before, theirs, out, written)
    history = shapes.W - 1
    moved = torch.stack([step.cache.conv[block, :, :history] for _, _, block in written])
    yield compare_bits("conv states", moved, torch.stack([
        before.cache.conv[_block_of(step, i), :, rows - 1 : rows - 1 + history] for i, rows, _ in written
    ]))  # fmt: skip
    yield _compare_others(step, before, written, history)


def _block_of(step: MadeStep, request: int) -> int:
    return int(step.batch.state_blocks[request])


def _written(step: MadeStep) -> Iterator[tuple[int, int, int]]:
    """Yield request, rows and block of every state that the commit has to write."""
    plan = empty_plan(step)
    reference.plan(step.batch, step.num_sampled, None, step.align, plan)
    count, final, block_end, lengths = (part.tolist() for part in plan)
    for i in range(len(step.lengths)):
        yield i, count[i], final[i]
        if block_end[i] > NULL_BLOCK:
            yield i, lengths[i], block_end[i]


def _compare_plans(kernels: Kernels, step: MadeStep, batch: Batch) -> Part:
    """Compare all four forms: with and without block boundaries, requests in their places or
    elsewhere."""
    requests, align = len(batch.state_blocks), step.align
    elsewhere = torch.arange(requests - 1, -1, -1, dtype=torch.int32, device=step.whole.device)
    turned = elsewhere.long()
    tables = [table[turned] for table in align.tables.tensors]
    there = Align.of(tables, align.num_computed[turned], align.block_size)
    forms: list[tuple[torch.Tensor | None, torch.Tensor, Align | None]] = [
        (None, step.num_sampled, None),
        (None, step.num_sampled, align),
        (elsewhere, step.num_sampled[turned], None),
        (elsewhere, step.num_sampled[turned], there),
    ]
    mine: list[torch.Tensor] = []
    expected: list[torch.Tensor] = []
    for rows_of, sampled, form in forms:
        for run_plan, plans in ((kernels.replay.plan, mine), (reference.plan, expected)):
            plan = empty_plan(step)
            run_plan(batch, sampled, rows_of, form, plan)
            plans.append(torch.stack(list(plan)))
    return compare_bits("plan", torch.stack(mine), torch.stack(expected))


def _compare_records(step: MadeStep) -> Part:
    keys = torch.cat([part[: step.num_rows].flatten(1) for part in step.rows[1:]], dim=1)
    mine = [step.cache.records[_block_of(step, i), :length] for i, length in enumerate(step.lengths)]
    return compare_bits("recorded inputs", torch.cat(mine), keys)


def _exact(
    step: MadeStep,
    before: MadeStep,
    theirs: PerToken,
    out: torch.Tensor,
    written: list[tuple[int, int, int]],
) -> Iterator[Part]:
    yield compare_bits("outputs", out[: step.num_rows], theirs.outputs[: step.num_rows])
    mine = torch.stack([step.cache.state[block] for _, _, block in written])
    yield compare_bits(
        "states", mine, torch.stack([theirs.after(step, i, rows) for i, rows, _ in written])
    )


def _bounded(
    step: MadeStep,
    before: MadeStep,
    theirs: PerToken,
    out: torch.Tensor,
    written: list[tuple[int, int, int]],
) -> Iterator[Part]:
    outputs, states = _in_fp64(before, written)
    count = step.num_rows
    mine = torch.stack([step.cache.state[block] for _, _, block in written])
    own = torch.stack([theirs.after(step, i, rows) for i, rows, _ in written])
    for name, found, stock, exact in (
        ("outputs", out[:count], theirs.outputs[:count], outputs),
        ("states", mine, own, states),
    ):
        unit = torch.finfo(found.dtype).eps / 2
        limit = max(FACTOR * relative_error(stock, exact), ROUNDINGS * unit)
        yield compare_error(name, found, exact, limit)


def _in_fp64(before: MadeStep, written: list[tuple[int, int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the reference's outputs [N, HV, DV] and the states to write, in fp64."""
    cache = before.cache._replace(
        conv=before.cache.conv.clone(),
        state=before.cache.state.double(),
        records=before.cache.records.clone(),
    )
    out, plan = before.rows.value.double(), empty_plan(before)
    reference.verify(before.rows, before.gating, cache, before.batch, out)
    reference.plan(before.batch, before.num_sampled, None, before.align, plan)
    reference.Commit([(cache, before.gating, 0)], 1)(before.batch, plan)
    states = torch.stack([cache.state[block] for _, _, block in written])
    return out[: before.num_rows], states


def _compare_others(
    step: MadeStep, before: MadeStep, written: list[tuple[int, int, int]], history: int
) -> Part:
    """Compare every byte that nobody had to write: the null block, the blocks of nobody, what lies
    between."""
    for _, _, block in written:
        before.cache.state[block] = step.cache.state[block]
        before.cache.conv[block, :, :history] = step.cache.conv[block, :, :history]
    for i in range(len(step.lengths)):
        before.cache.records[_block_of(step, i)] = step.cache.records[_block_of(step, i)]
    kept = [block for block in range(len(step.whole)) if block not in step.scratch]
    return compare_bits("other bytes", step.whole[kept], before.whole[kept])
