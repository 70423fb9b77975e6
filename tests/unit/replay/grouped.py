"""Steps of several cache groups: the layers of each stand on state blocks of their own."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import torch

from tests.unit.replay.cases import DEVICE, PADDING, Case, Shape, bits, case
from vllm_eagle_ext.replay.ops.types import Align, Batch, CommitPlan

SHAPE = Shape(T=4, H=1, HV=2)
COUNTS, SAMPLED, SIZE = [4, PADDING, 2, 4], [3, 1, 0, 4], 16
COMPUTED = [14, 0, 33, 12]  # the first step passes a block boundary, the last ends at one
SPARE, WIDTH = 12, 4  # blocks and columns behind


def steps(groups: int) -> list[Case]:
    """One layer per group, verified by nobody yet; the records are made up."""
    made = [case(SHAPE, COUNTS, seed=100 * group, spare=SPARE) for group in range(groups)]
    for number, step in enumerate(made):
        generator = torch.Generator().manual_seed(number)
        noise = torch.randn(step.cache.records.shape, generator=generator)
        step.cache.records.copy_(noise.to(step.cache.records.dtype))
        scratch = torch.arange(len(COUNTS), dtype=torch.int32, device=DEVICE) + 1 + len(COUNTS)
        step.batch = step.batch._replace(scratch=scratch)
    return made


def tables(step: Case) -> torch.Tensor:
    """The block table of a group: each request's state block where its step began, fresh ones behind."""
    fresh = torch.arange(len(COUNTS) * WIDTH).view(len(COUNTS), WIDTH) % (SPARE - len(COUNTS))
    table = (fresh + 1 + 2 * len(COUNTS)).to(torch.int32).to(DEVICE)
    for i, block in enumerate(step.batch.state_blocks.tolist()):
        table[i, COMPUTED[i] // SIZE] = block
    return table


def commit(ops: ModuleType | SimpleNamespace, made: list[Case], *, at_once: bool, aligned: bool) -> None:
    """All groups in one commit, or one after the other."""
    sampled = torch.tensor(SAMPLED, dtype=torch.int32, device=DEVICE)
    computed = torch.tensor(COMPUTED, dtype=torch.int32, device=DEVICE)
    every = [(step, tables(step)) for step in made]
    for chosen in [every] if at_once else [[one] for one in every]:
        blocks = torch.stack([step.batch.state_blocks for step, _ in chosen])
        scratch = torch.stack([step.batch.scratch for step, _ in chosen])
        batch = Batch(blocks, chosen[0][0].batch.starts, scratch)
        # Wider than the batch, as buffers are: groups stand further apart than requests are many.
        parts = torch.full((4, len(chosen), len(COUNTS) + 5), 1 << 20, dtype=torch.int32, device=DEVICE)
        plan = CommitPlan(*(part[:, : len(COUNTS)] for part in parts))
        align = Align.of([table for _, table in chosen], computed, SIZE) if aligned else None
        ops.plan(batch, sampled, None, align, plan)
        layers = [(step.cache, step.gating, group) for group, (step, _) in enumerate(chosen)]
        ops.Commit(layers, SHAPE.W - 1)(batch, plan)


def assert_equals_one_by_one(ops: ModuleType | SimpleNamespace, groups: int, *, aligned: bool) -> None:
    made, twin, untouched = (steps(groups) for _ in range(3))
    commit(ops, made, at_once=True, aligned=aligned)
    commit(ops, twin, at_once=False, aligned=aligned)
    for one, other, before in zip(made, twin, untouched, strict=True):
        assert torch.equal(bits(one.whole), bits(other.whole))
        assert not torch.equal(one.whole, before.whole)
