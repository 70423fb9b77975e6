# SPDX-License-Identifier: Apache-2.0
"""What an engine does around the kernels, which a worker's check at a start leaves out.

A CUDA graph of verify and commit: every byte of the cache and every output is compared with the same
step run plainly. And steps of many cache groups: state blocks gathered from the block tables of all
groups, one commit after them. Compared with each layer by itself, whose blocks the host looks up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import torch
from vllm.config import VllmConfig

from vllm_eagle_ext.replay.cache_groups import CacheGroups, GroupCommit
from vllm_eagle_ext.replay.ops import replay_ops
from vllm_eagle_ext.replay.ops.types import NULL_BLOCK, Align, Batch, BlockPlaces, Step
from vllm_eagle_ext.replay.self_check.compared import (
    STEP_REQUESTS,
    KernelCheck,
    Kernels,
    Part,
    compare_bits,
    error_line,
    is_device_lost,
)
from vllm_eagle_ext.replay.self_check.step import MadeStep, Shapes, copy_of, empty_plan, make_step

GROUPS = 48  # Qwen3.6-27B with its published DFlash draft: a cache group for each gated delta net
STEPS = 2  # block tables are known by address from the second one on
WHOLE = 6  # requests of a batch: four that are verified, and two prompts
MIXED = [5, 0, 3, 2]  # places of the verified ones among them
COLUMNS = 2  # of a block table


@torch.inference_mode()
def check_in_a_graph(kernels: Kernels, shapes: Shapes, device: torch.device) -> KernelCheck:
    """Capture verify and commit on one row per request, replay them on one step and, in the same memory,
    on another, whose requests have other numbers of rows: vLLM captures graphs for varying widths so."""

    def parts() -> list[Part]:
        step, other = (make_step(shapes, device, STEP_REQUESTS, seed) for seed in (0, 50))
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

    return result_of("CUDA graph", kernels, shapes, device, parts)


def result_of(
    name: str, kernels: Kernels, shapes: Shapes, device: torch.device, parts: Callable[[], list[Part]]
) -> KernelCheck:
    """Collect the parts of a check; what they raise is a result, too."""
    plain = KernelCheck(kernels=f"{name}: {kernels.name}", shapes=str(shapes))
    try:
        return replace(plain, parts=tuple(parts()))
    except Exception as raised:  # noqa: BLE001 - the next check must have its turn
        return replace(plain, error=error_line(raised), device_lost=is_device_lost(raised, device))


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
    """Give a step the content of another one of the same sizes, where it stands."""
    for mine, theirs in zip(_inputs(step), _inputs(fresh), strict=True):
        mine.copy_(theirs)
    step.whole.copy_(fresh.whole)


def _inputs(step: MadeStep) -> tuple[torch.Tensor, ...]:
    """Return what a graph reads.

    Scratch blocks, and how many tokens were computed, are those of all steps.
    """
    batch = step.batch
    return (
        *step.rows, *step.gating, batch.state_blocks, batch.starts, step.num_sampled,
        *step.align.tables.tensors,
    )  # fmt: skip


def _beside_plain_run(
    name: str, kernels: Kernels, shapes: Shapes, fresh: MadeStep, step: MadeStep, out: torch.Tensor
) -> list[Part]:
    """Compare outputs and cache with those of the same step run plainly."""
    expected, run = _plain_run(kernels, shapes, fresh)
    run()
    count = fresh.num_rows
    return [
        compare_bits(f"outputs {name}", out[:count], expected[:count]),
        compare_bits(f"cache {name}", *kept(step, fresh)),
    ]


def kept(step: MadeStep, other: MadeStep) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bytes of both steps without scratch blocks."""
    kept = [block for block in range(len(step.whole)) if block not in step.scratch]
    return step.whole[kept], other.whole[kept]


@torch.inference_mode()
def check_groups(
    kernels: Kernels, shapes: Shapes, device: torch.device, groups: int = GROUPS
) -> KernelCheck:
    """Take steps of a layer in each of many cache groups, by `CacheGroups` and `GroupCommit`."""

    def parts() -> list[Part]:
        # A CPU, whose operator needs scratch blocks in the tables, has no block boundaries.
        is_gpu = not replay_ops().scratch_blocks
        found = list(_compare_steps("", _Batches(kernels, shapes, device, groups), kernels))
        mixed = _Batches(kernels, shapes, device, groups, mixed=True, aligned=is_gpu)
        return [*found, *_compare_steps(", of a mixed batch", mixed, kernels)]

    return result_of(f"{groups} cache groups", kernels, shapes, device, parts)


class _Batches:
    """Two steps of one batch, with a made-up layer and a block table for each group."""

    def __init__(
        self, kernels: Kernels, shapes: Shapes, device: torch.device, groups: int,
        *, mixed: bool = False, aligned: bool = False,
    ) -> None:  # fmt: skip
        self.shapes, self.device = shapes, device
        self.made = [make_step(shapes, device, STEP_REQUESTS, seed) for seed in range(groups)]
        self.first = self.made[0]
        self.order = MIXED if mixed else list(range(STEP_REQUESTS))
        self.others = sorted(set(range(WHOLE)) - set(self.order)) if mixed else []
        self.indices = self._int32(self.order) if mixed else None
        self.tables, self.left = self._tables(), list[torch.Tensor]()
        self.sampled = self._of_whole(self.first.num_sampled)
        self.computed = self._of_whole(self.first.align.num_computed)
        rows = self._of_whole(self.first.batch.starts.diff())
        self.lengths = self.computed + rows if aligned else None  # of the requests, after this step
        self.apply = [
            kernels.replay.Commit([(step.cache, step.gating, 0)], shapes.W - 1) for step in self.made
        ]

    def _int32(self, values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def _of_whole(self, of_verified: torch.Tensor) -> torch.Tensor:
        """Return a tensor [requests of the whole batch], with ones for those that are not verified."""
        found = self._int32([1] * WHOLE)
        found[self.order] = of_verified[:STEP_REQUESTS].int()
        return found

    def _tables(self) -> list[torch.Tensor]:
        """Make a table per group, with all its cache's blocks but the null block, in its own order."""
        tables = []
        for group in range(len(self.made)):
            generator = torch.Generator(device="cpu").manual_seed(group)
            blocks = (1 + torch.randperm(10, generator=generator, device="cpu")).tolist()
            table = [[NULL_BLOCK] * COLUMNS for _ in range(WHOLE)]
            for request in self.order:
                table[request] = [blocks.pop() for _ in range(COLUMNS)]
            for request in self.others:
                table[request][0] = blocks.pop()
            tables.append(self._int32(table))
        return tables

    def move_tables(self) -> None:
        """Put the tables elsewhere; who still reads them where they were finds null blocks."""
        self.left += self.tables  # or what is read there would be anything
        self.tables = [table.clone() for table in self.tables]
        for table in self.left:
            table.zero_()

    @property
    def aligned(self) -> bool:
        return self.lengths is not None

    def step(self) -> Step:
        """Make a padded step as a builder does of one group, before state blocks are gathered."""
        starts = self.first.batch.starts
        places = BlockPlaces(STEP_REQUESTS, self.indices, self.lengths, self.first.align.block_size)
        others = places._replace(requests=len(self.others), indices=self._int32(self.others))
        return Step(
            batch=Batch(starts, starts), num_rows=self.first.num_rows, num_requests=STEP_REQUESTS,
            rows_per_request=self.shapes.T, rows=None, other_rows=starts, places=places,
            other_places=others if self.others else None,
            num_computed=self.computed if self.aligned else None, ones=torch.ones_like(starts), built={},
        )  # fmt: skip

    def blocks(self, group: int, requests: Sequence[int], column: int = 0) -> list[int]:
        """Look up state blocks (column 0) or those after them."""
        table, size = self.tables[group].tolist(), self.first.align.block_size
        lengths = self.lengths.tolist() if self.lengths is not None else [1] * WHOLE
        return [table[request][(lengths[request] - 1) // size + column] for request in requests]

    def take(self, group: int, kernels: Kernels) -> torch.Tensor:
        """Verify and commit one group's layer by itself, and return its outputs."""
        step, has_scratch = self.made[group], replay_ops().scratch_blocks
        blocks = self._int32([*self.blocks(group, self.order), NULL_BLOCK])
        scratch = None
        if has_scratch:
            scratch = self._int32([*self.blocks(group, self.order, 1), NULL_BLOCK])
        batch = kernels.prepare(Batch(blocks, self.first.batch.starts, scratch), self.shapes.T)
        out = torch.empty_like(step.rows.value)
        kernels.replay.verify(step.rows, step.gating, step.cache, batch, out)
        batch, plan = batch.first(STEP_REQUESTS), empty_plan(step)
        align = None
        if self.aligned:
            align = Align.of([self.tables[group]], self.computed, self.first.align.block_size)
        mine = type(plan)(*(part[:STEP_REQUESTS] for part in plan))
        kernels.replay.plan(batch, self.sampled, self.indices, align, mine)
        self.apply[group](batch, mine)
        return out[: step.num_rows]


class _AsAnEngine:
    """Takes the steps of all groups together."""

    def __init__(self, batches: _Batches, kernels: Kernels) -> None:
        self.batches, self.kernels = batches, kernels
        self.made = [copy_of(step, batches.shapes) for step in batches.made]
        names = [f"layers.{group}" for group in range(len(self.made))]
        self.groups = CacheGroups(len(names), STEP_REQUESTS + 1, batches.device, replay_ops())
        for name in names:
            self.groups.join([name])
        layers = {
            name: SimpleNamespace(
                state_cache=step.cache, gating=step.gating, conv_kernel_size=batches.shapes.W,
                replay_kernels=kernels.replay,
            )
            for name, step in zip(names, self.made, strict=True)
        }  # fmt: skip
        config = SimpleNamespace(
            compilation_config=SimpleNamespace(static_forward_context=layers),
            scheduler_config=SimpleNamespace(max_num_seqs=STEP_REQUESTS + 1),
        )
        self.commit = GroupCommit(self.groups, cast(VllmConfig, config))

    def take(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outputs, and the blocks of the requests that are not verified, of all groups."""
        first_table, *tables = self.batches.tables
        first = self.groups.first_step(first_table, self.batches.step())
        later = (self.groups.step_for_group(i, table, first) for i, table in enumerate(tables, 1))
        steps = [first, *later]
        outputs, others = [], []
        for group, (made, step) in enumerate(zip(self.made, steps, strict=True)):
            out = torch.empty_like(made.rows.value)
            self.kernels.replay.verify(made.rows, made.gating, made.cache, step.batch, out)
            outputs.append(out[: made.num_rows])
            if self.batches.others:
                others.append(self.groups.other_blocks(group, step).clone())
        self.commit(first, self.batches.sampled)
        return torch.stack(outputs), torch.stack(others or [self.batches.sampled])


def _compare_steps(form: str, batches: _Batches, kernels: Kernels) -> Iterator[Part]:
    engine, groups = _AsAnEngine(batches, kernels), range(len(batches.made))
    for _ in range(STEPS):
        outputs, others = engine.take()
        one_by_one = torch.stack([batches.take(group, kernels) for group in groups])
        yield compare_bits(f"outputs{form}", outputs, one_by_one)
        if batches.others:
            expected = [batches.blocks(group, batches.others) for group in groups]
            yield compare_bits(f"blocks of prompts{form}", others, batches._int32(expected))
        batches.move_tables()
    pairs = [_kept(batches, group, engine.made[group]) for group in groups]
    mine, theirs = (torch.stack(part) for part in zip(*pairs, strict=True))
    yield compare_bits(f"cache{form}", mine, theirs)


def _kept(batches: _Batches, group: int, mine: MadeStep) -> tuple[torch.Tensor, torch.Tensor]:
    scratch = batches.blocks(group, batches.order, 1) if replay_ops().scratch_blocks else []
    return kept(mine._replace(scratch=scratch), batches.made[group])
