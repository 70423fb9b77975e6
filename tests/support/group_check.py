"""Steps of many cache groups, each with a layer of its own: state blocks gathered from the block tables
of all groups together, verified, and one commit after them. Compared in all bits with each layer by
itself, whose blocks the host looks up. On a GPU the second step's rows are verified in a CUDA graph,
which reads the buffers that the gather fills.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import torch
from vllm.config import VllmConfig

from vllm_eagle_ext.replay.cache_groups import CacheGroups, GroupsCommit
from vllm_eagle_ext.replay.on_platform import replay_ops
from vllm_eagle_ext.replay.ops.types import NULL_BLOCK, Align, Batch, BlockPlaces, ReplayOps, Step
from vllm_eagle_ext.replay.self_check.compared import (
    STEP_REQUESTS,
    KernelCheck,
    Kernels,
    Part,
    collect,
    compare_bits,
)
from vllm_eagle_ext.replay.self_check.step import MadeStep, Shapes, copy_of, empty_plan, make_step

GROUPS = 48  # Qwen3.6-27B with its published DFlash draft: a cache group for each gated delta net
STEPS = 2  # block tables are known by address from the second one on
WHOLE = 6  # requests of a batch: four that are verified, and two prompts
MIXED = [5, 0, 3, 2]  # places of the verified ones among them
COLUMNS = 2  # of a block table


@torch.inference_mode()
def check_groups(
    kernels: Kernels, shapes: Shapes, device: torch.device, groups: int = GROUPS,
    ops: ReplayOps | None = None,
) -> KernelCheck:  # fmt: skip
    """Take steps of a layer in each of many cache groups, by `CacheGroups` and `GroupsCommit`."""
    made = kernels, shapes, device, groups, ops or replay_ops()

    def parts() -> Iterator[Part]:
        yield from _compare_steps("", _Batches(*made), kernels)
        # A CPU, whose operator needs scratch blocks in the tables, has no block boundaries.
        mixed = _Batches(*made, mixed=True, aligned=not made[-1].scratch_blocks)
        yield from _compare_steps(", of a mixed batch", mixed, kernels)

    return collect(f"{groups} cache groups: {kernels.name}", shapes, device, parts())


class _Batches:
    """Two steps of one batch, with a made-up layer and a block table for each group."""

    def __init__(
        self, kernels: Kernels, shapes: Shapes, device: torch.device, groups: int, ops: ReplayOps,
        *, mixed: bool = False, aligned: bool = False,
    ) -> None:  # fmt: skip
        self.shapes, self.device, self.ops = shapes, device, ops
        self.made = [make_step(shapes, device, STEP_REQUESTS, seed) for seed in range(groups)]
        self.first = self.made[0]
        self.order = MIXED if mixed else list(range(STEP_REQUESTS))
        self.others = sorted(set(range(WHOLE)) - set(self.order)) if mixed else []
        self.indices = self.int32(self.order) if mixed else None
        self.tables, self.left = self._tables(), list[torch.Tensor]()
        self.sampled = self._of_whole(self.first.num_sampled)
        self.computed = self._of_whole(self.first.align.num_computed)
        rows = self._of_whole(self.first.batch.starts.diff())
        self.seq_lens = self.computed + rows if aligned else None
        self.apply = [
            kernels.module.Commit([(step.cache, step.gating, 0)], shapes.W - 1) for step in self.made
        ]

    def int32(self, values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def _of_whole(self, of_verified: torch.Tensor) -> torch.Tensor:
        """Return a tensor [requests of the whole batch], with ones for those that are not verified."""
        whole = self.int32([1] * WHOLE)
        whole[self.order] = of_verified[:STEP_REQUESTS].int()
        return whole

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
            tables.append(self.int32(table))
        return tables

    def move_tables(self) -> None:
        """Put the tables elsewhere; who still reads them where they were finds null blocks."""
        self.left += self.tables  # or what is read there would be anything
        self.tables = [table.clone() for table in self.tables]
        for table in self.left:
            table.zero_()

    def step(self) -> Step:
        """Make a padded step as a builder does of one group, before state blocks are gathered."""
        starts = self.first.batch.starts
        places = BlockPlaces(STEP_REQUESTS, self.indices, self.seq_lens, self.first.align.block_size)
        others = places._replace(requests=len(self.others), indices=self.int32(self.others))
        return Step(
            batch=Batch(starts, starts), num_rows=self.first.num_rows, num_requests=STEP_REQUESTS,
            rows_per_request=self.shapes.T, rows=None, other_rows=starts, places=places,
            other_places=others if self.others else None,
            num_computed=None if self.seq_lens is None else self.computed,
            ones=torch.ones_like(starts), built={},
        )  # fmt: skip

    def blocks(self, group: int, requests: Sequence[int], column: int = 0) -> list[int]:
        """Look up state blocks (column 0) or those after them."""
        table, size = self.tables[group].tolist(), self.first.align.block_size
        seq_lens = [1] * WHOLE if self.seq_lens is None else self.seq_lens.tolist()
        return [table[request][(seq_lens[request] - 1) // size + column] for request in requests]

    def scratch_blocks(self, group: int) -> list[int]:
        return self.blocks(group, self.order, 1) if self.ops.scratch_blocks else []

    def verify_and_commit(self, group: int, kernels: Kernels) -> torch.Tensor:
        """Take one group's layer through the step by itself, and return its outputs."""
        step = self.made[group]
        blocks = self.int32([*self.blocks(group, self.order), NULL_BLOCK])
        scratch = None
        if self.ops.scratch_blocks:
            scratch = self.int32([*self.scratch_blocks(group), NULL_BLOCK])
        batch = kernels.prepare(Batch(blocks, self.first.batch.starts, scratch), self.shapes.T)
        out = torch.empty_like(step.rows.value)
        kernels.module.verify(step.rows, step.gating, step.cache, batch, out)
        batch, plan = batch.first(STEP_REQUESTS), empty_plan(step)
        align = None
        if self.seq_lens is not None:
            align = Align.of([self.tables[group]], self.computed, self.first.align.block_size)
        plan = type(plan)(*(part[:STEP_REQUESTS] for part in plan))
        kernels.module.plan(batch, self.sampled, self.indices, align, plan)
        self.apply[group](batch, plan)
        return out[: step.num_rows]


class _AsAnEngine:
    """Takes the steps of all groups together."""

    def __init__(self, batches: _Batches, kernels: Kernels) -> None:
        self.batches, self.kernels = batches, kernels
        self.made = [copy_of(step, batches.shapes) for step in batches.made]
        self.outputs = [torch.empty_like(step.rows.value) for step in self.made]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.has_run = False
        names = [f"layers.{group}" for group in range(len(self.made))]
        self.groups = CacheGroups(len(names), STEP_REQUESTS + 1, batches.device, batches.ops)
        for name in names:
            self.groups.join([name])
        layers = {
            name: SimpleNamespace(
                state_cache=step.cache, gating=step.gating, conv_kernel_size=batches.shapes.W,
                replay_kernels=kernels.module,
            )
            for name, step in zip(names, self.made, strict=True)
        }  # fmt: skip
        config = SimpleNamespace(
            compilation_config=SimpleNamespace(static_forward_context=layers),
            scheduler_config=SimpleNamespace(max_num_seqs=STEP_REQUESTS + 1),
        )
        self.commit = GroupsCommit(self.groups, cast(VllmConfig, config))

    def verify_and_commit(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outputs, and the blocks of the requests that are not verified, of all groups."""
        first_table, *tables = self.batches.tables
        first = self.groups.step_for_first_group(first_table, self.batches.step())
        later = (self.groups.step_for_group(i, table, first) for i, table in enumerate(tables, 1))
        self._verify([first, *later])
        outputs = torch.stack([out[: self.batches.first.num_rows] for out in self.outputs])
        others = [self.batches.sampled]
        if self.batches.others:
            others = [self.groups.other_blocks(i, first).clone() for i in range(len(self.made))]
        self.commit(first, self.batches.sampled)
        return outputs, torch.stack(others)

    def _verify(self, steps: list[Step]) -> None:
        """Verify all groups. A GPU's first step compiles the kernels; the second is one graph, captured
        on a side stream."""
        for out in self.outputs:
            out.fill_(float("nan"))
        if self.batches.device.type != "cuda" or not self.has_run:
            self._run(steps)
            self.has_run = True
            return
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._run(steps)
        self.graph.replay()

    def _run(self, steps: list[Step]) -> None:
        for made, step, out in zip(self.made, steps, self.outputs, strict=True):
            self.kernels.module.verify(made.rows, made.gating, made.cache, step.batch, out)


def _compare_steps(form: str, batches: _Batches, kernels: Kernels) -> Iterator[Part]:
    engine, groups = _AsAnEngine(batches, kernels), range(len(batches.made))
    for _ in range(STEPS):
        outputs, others = engine.verify_and_commit()
        one_by_one = torch.stack([batches.verify_and_commit(group, kernels) for group in groups])
        yield compare_bits(f"outputs{form}", outputs, one_by_one)
        if batches.others:
            expected = [batches.blocks(group, batches.others) for group in groups]
            yield compare_bits(f"blocks of prompts{form}", others, batches.int32(expected))
        batches.move_tables()
    pairs = [_without_scratch(batches, group, engine.made[group]) for group in groups]
    mine, theirs = (torch.stack(part) for part in zip(*pairs, strict=True))
    yield compare_bits(f"cache{form}", mine, theirs)


def _without_scratch(batches: _Batches, group: int, mine: MadeStep) -> tuple[torch.Tensor, torch.Tensor]:
    scratch = batches.scratch_blocks(group)
    kept = [block for block in range(len(mine.whole)) if block not in scratch]
    return mine.whole[kept], batches.made[group].whole[kept]
