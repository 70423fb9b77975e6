"""What the chunked kernels write and leave alone: as the sequential ones, of whom more is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.unit.replay.cases import PADDING, Case, Shape, bits, case, replay
from vllm_eagle_ext.replay.ops import triton as sequential
from vllm_eagle_ext.replay.ops import triton_chunked as chunked
from vllm_eagle_ext.replay.ops.triton_chunked import unsupported_reason
from vllm_eagle_ext.replay.ops.types import Align

COUNTS, LENGTHS = [3, PADDING, 0, 1, PADDING, 4], [2, 3, 1, 1, 0, 4]
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
KERNELS = (sequential, chunked)


def changed(step: Case, before: torch.Tensor) -> list[int]:
    return (step.whole != before).any(1).nonzero()[:, 0].tolist()


def pair(shape: Shape, counts: list[int], spare: int = 2) -> list[Case]:
    return [case(shape, counts, spare=spare) for _ in KERNELS]


@pytest.mark.parametrize("padding", [0, -1])
@pytest.mark.parametrize("T", [4, pytest.param(17, marks=pytest.mark.full)])
def test_a_verify_writes_the_same_records_and_nothing_else(padding, T):
    outs, steps = [], pair(Shape(T=T, H=2, HV=4), [*COUNTS[:-1], T])
    for kernels, step in zip(KERNELS, steps, strict=True):
        step.batch.state_blocks[step.batch.state_blocks == 0] = padding
        outs.append(step.out())
        kernels.verify(step.rows, step.gating, step.cache, step.batch, outs[-1])
    assert torch.equal(steps[0].whole, steps[1].whole)
    assert torch.equal(outs[0].isnan(), outs[1].isnan())
    assert outs[0].isnan().any()


def test_rows_beyond_the_records_are_not_recorded():
    """A graph's capture may bring some; they would fall into the next block."""
    step = case(Shape(T=3), [3, 2])
    narrow = step.cache._replace(records=step.cache.records[:, :2])
    before, out = step.cache.records[:, 2].clone(), step.out()
    chunked.verify(step.rows, step.gating, narrow, step.batch, out)
    assert torch.equal(bits(step.cache.records[:, 2]), bits(before))
    assert not out.isnan().any()


def test_more_rows_than_a_program_has_are_left_alone():
    step = case(Shape(T=20), [20])
    narrow, out = step.cache._replace(records=step.cache.records[:, :4]), step.out()
    chunked.verify(step.rows, step.gating, narrow, step.batch, out)
    assert not out[:16].isnan().any()
    assert out[16:].isnan().all()


def test_a_commit_writes_the_blocks_of_its_plan_alone():
    steps = pair(Shape(), COUNTS)
    before = [step.whole.clone() for step in steps]
    outcomes = [replay(step, LENGTHS, ops) for step, ops in zip(steps, KERNELS, strict=True)]
    assert changed(steps[0], before[0]) == changed(steps[1], before[1])
    for i in steps[0].active:
        assert torch.equal(outcomes[0].conv[i], outcomes[1].conv[i])
        torch.testing.assert_close(outcomes[0].state[i], outcomes[1].state[i], **CLOSE)
    step = steps[1]
    plan, now = step.plan(), step.whole.clone()
    chunked.plan(step.batch, step.sampled(LENGTHS), None, None, plan)
    commit = chunked.Commit([(step.cache, step.gating, 0)], 3)
    commit(step.batch, plan._replace(rows_to_commit=torch.zeros_like(plan.rows_to_commit)))
    commit(step.batch, plan._replace(final=torch.zeros_like(plan.final)))
    assert changed(step, now) == []


@pytest.mark.parametrize("T", [4, pytest.param(17, marks=pytest.mark.full)])
@pytest.mark.parametrize("source", ["ends", "goes on"])
def test_a_step_over_a_block_boundary(T, source):
    """The block that a state is read from may be the one that ends there, or that of the last token."""
    steps = pair(Shape(T=T, H=2, HV=4), [T, T, PADDING, T], spare=4)
    for kernels, step in zip(KERNELS, steps, strict=True):
        table = torch.zeros(4, 3, dtype=torch.int32, device=step.whole.device)
        for row, fresh in zip((0, 1, 3), (5, 6, 7), strict=True):
            here = [int(step.batch.state_blocks[row]), fresh]
            table[row, :2] = torch.tensor(here if source == "ends" else here[::-1])
        computed = step.sampled([30, 29, 0, 28])  # beyond the block boundary, on it, before it
        out, plan = step.out(), step.plan()
        kernels.verify(step.rows, step.gating, step.cache, step.batch, out)
        align = Align.of([table], computed, 32)
        kernels.plan(step.batch, step.sampled([4, 3, 1, 3]), None, align, plan)
        assert (plan.block_end > 0).sum() == 1
        kernels.Commit([(step.cache, step.gating, 0)], 3)(step.batch, plan)
    assert torch.equal(steps[0].cache.conv, steps[1].cache.conv)
    torch.testing.assert_close(steps[0].cache.state, steps[1].cache.state, **CLOSE)


def test_several_layers_in_one_commit():
    layers = [case(Shape(), [3, PADDING, 2], seed) for seed in (7, 8)]
    twins = [case(Shape(), [3, PADDING, 2], seed) for seed in (7, 8)]
    for step in layers:
        step.batch = layers[0].batch
        chunked.verify(step.rows, step.gating, step.cache, step.batch, step.out())
    plan = layers[0].plan()
    chunked.plan(layers[0].batch, layers[0].sampled([2, 0, 1]), None, None, plan)
    chunked.Commit([(step.cache, step.gating, 0) for step in layers], 3)(layers[0].batch, plan)
    for step, twin in zip(layers, twins, strict=True):
        twin.batch = layers[0].batch
        replay(twin, [2, 0, 1], chunked)
        assert torch.equal(bits(step.cache.state), bits(twin.cache.state))


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (Shape(DK=20), "heads are 20 and 16 wide"),
        (Shape(DV=40), "heads are 16 and 40 wide"),
        (Shape(T=65), "up to 65 rows"),
        (Shape(model=torch.float32), "rows are torch.float32"),
    ],
    ids=str,
)
def test_what_they_cannot_run_is_refused(shape, reason):
    step = case(shape, [2])
    with pytest.raises(ValueError, match=reason):
        chunked.verify(step.rows, step.gating, step.cache, step.batch, step.out())
    with pytest.raises(ValueError, match=reason):
        chunked.Commit([(step.cache, step.gating, 0)], 3)
    widths, dtypes = (shape.DK, shape.DV), (shape.model, shape.state)
    assert reason in unsupported_reason(*widths, shape.T, *dtypes)
    right = replace(shape, DK=16, DV=16, T=64, model=torch.bfloat16)
    assert unsupported_reason(right.DK, right.DV, right.T, right.model, right.state) is None
