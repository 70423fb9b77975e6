"""What a step writes and what it leaves alone; the plan; conv states; block boundaries."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

from tests.unit.replay.cases import (
    DEVICE,
    PADDING,
    Case,
    Shape,
    bits,
    case,
    conv_states,
    differing,
    noise,
    replay,
)
from tests.unit.replay.interpreted.per_token import PerToken, per_token_outcome
from vllm_eagle_ext.replay.ops import reference
from vllm_eagle_ext.replay.ops import triton as ops
from vllm_eagle_ext.replay.ops.triton_plan import MoveConvStates
from vllm_eagle_ext.replay.ops.types import Align, Batch, CommitPlan

COUNTS, LENGTHS = [3, PADDING, 0, 1, PADDING, 4], [2, 3, 1, 1, 0, 4]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-7}  # of fp64; bf16: two roundings of 2^-8 at most


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def changed_blocks(step: Case, before: torch.Tensor) -> list[int]:
    return (step.whole != before).any(1).nonzero()[:, 0].tolist()


def owned(step: Case, counts: list[int]) -> list[int]:
    return sorted(
        p for p, count in zip(step.batch.state_blocks.tolist(), counts, strict=True) if count > 0
    )


@pytest.mark.parametrize("padding", [0, -1])
def test_padding_is_inert(padding):
    step = case(Shape(), COUNTS)
    step.batch.state_blocks[step.batch.state_blocks == 0] = padding
    before, out = step.whole.clone(), step.out()
    ops.verify(step.rows, step.gating, step.cache, step.batch, out)
    assert changed_blocks(step, before) == owned(step, COUNTS)  # records
    starts = step.batch.starts.tolist()
    padded = [i for i, count in enumerate(COUNTS) if count == PADDING]
    assert all(out[starts[i] : starts[i + 1]].isnan().all() for i in padded)
    assert not out[: starts[1]].isnan().any()

    plan, before = step.plan(), step.whole.clone()
    ops.plan(step.batch, step.sampled(LENGTHS), None, None, plan)
    commit = ops.Commit([(step.cache, step.gating, 0)], 3)
    commit(step.batch, plan)
    assert changed_blocks(step, before) == owned(step, COUNTS)
    before = step.whole.clone()
    commit(step.batch, plan._replace(rows_to_commit=torch.zeros_like(plan.rows_to_commit)))
    commit(step.batch, plan._replace(final=torch.zeros_like(plan.final)))
    assert changed_blocks(step, before) == []
    spare = len(before) - 1
    commit(step.batch, plan._replace(rows_to_commit=int32(0, 1, 0, 0, 1, 0), final=int32(*[spare] * 6)))
    assert changed_blocks(step, before) == []


def test_verify_leaves_states_and_conv_states_alone_and_records_its_rows():
    step = case(Shape(H=2, HV=4), COUNTS)
    before, out = step.cache.state.clone(), step.out()
    conv = step.cache.conv.clone()
    ops.verify(step.rows, step.gating, step.cache, step.batch, out)
    assert torch.equal(step.cache.state, before)
    assert torch.equal(step.cache.conv, conv)
    starts = step.batch.starts.tolist()
    for i in step.active:
        parts = [t[starts[i] : starts[i + 1]].flatten(1) for t in step.rows[1:]]
        records = step.cache.records[int(step.batch.state_blocks[i])]
        assert torch.equal(records[: step.counts[i]], torch.cat(parts, 1))
        assert records[step.counts[i] :].isnan().all()


def test_rows_beyond_the_records_are_not_recorded():
    """A graph's capture may bring some; they would fall into the next block."""
    step = case(Shape(T=3), [3, 2])
    narrow = step.cache._replace(records=step.cache.records[:, :2])
    before, out = step.cache.records[:, 2].clone(), step.out()
    ops.verify(step.rows, step.gating, narrow, step.batch, out)
    assert torch.equal(bits(step.cache.records[:, 2]), bits(before))
    assert not out.isnan().any()


@pytest.mark.parametrize("W", [2, 3, 4, 5])
def test_conv_states(W):
    """More channels than one program's, two layers."""
    shape = Shape(T=5, H=1, HV=1, DK=128, DV=40, W=W)
    layers = [case(shape, [1, 5, PADDING, 5, 5], seed) for seed in (0, 1)]
    batch, lengths = layers[0].batch, [1, 5, 0, 3, 2]
    layers[1].batch = batch
    expected, plan = [conv_states(layer, lengths) for layer in layers], layers[0].plan()
    before = [layer.cache.conv[0].clone() for layer in layers]
    ops.plan(batch, layers[0].sampled(lengths), None, None, plan)
    MoveConvStates([layer.cache.conv for layer in layers], [0, 0], W - 1)(batch, plan)
    for layer, wanted, untouched in zip(layers, expected, before, strict=True):
        blocks = batch.state_blocks[layer.active].long()
        assert torch.equal(layer.cache.conv[blocks, :, : W - 1], wanted[layer.active])
        assert torch.equal(layer.cache.conv[0], untouched)


def make_plan(step: Case, sampled: list[int], align: Align | None = None, ops=ops) -> CommitPlan:
    plan = step.plan()
    ops.plan(step.batch, int32(*sampled), None, align, plan)
    return plan


def test_plan_without_blocks():
    step = case(Shape(), COUNTS)
    blocks = step.batch.state_blocks.tolist()
    lengths, final, block_end, block_end_lengths = (
        t.tolist() for t in make_plan(step, [0, 4, 9, 9, 1, 3])
    )
    assert lengths == [1, 0, 0, 1, 0, 3]
    assert final == [blocks[0], 0, 0, blocks[3], 0, blocks[5]]
    assert block_end == block_end_lengths == [0] * 6


@pytest.mark.parametrize(
    ("before", "sampled", "final", "block_end", "block_end_length"),
    [
        (16, 4, 3, 0, 0),  # starts on a block boundary
        (18, 3, 3, 0, 0),  # inside
        (20, 4, 3, 0, 0),  # ends on a block boundary: its block is the final one
        (21, 4, 4, 3, 3),
        (23, 2, 4, 3, 1),
        (23, 0, 3, 0, 0),  # a chunk inside a prompt
        (29, 4, 4, 4, 3),  # the table ends
    ],
)
def test_plan_with_blocks_of_eight(before, sampled, final, block_end, block_end_length):
    step = case(Shape(), [4])
    table = int32(1, 2, 3, 4)[None]
    plan = make_plan(step, [sampled], Align.of([table], int32(before), 8))
    assert [t.item() for t in plan] == [max(sampled, 1), final, block_end, block_end_length]


def test_plan_equals_the_reference():
    """More requests than one program's, in another order than the whole batch's."""
    pick, requests, columns = random.Random(0), 300, 40
    counts = [pick.choice([PADDING, 0, 1, 4, 9]) for _ in range(requests)]
    starts = torch.tensor([0, *(max(count, 0) for count in counts)]).cumsum(0).to(torch.int32).to(DEVICE)
    blocks = int32(*(0 if count == PADDING else i + 1 for i, count in enumerate(counts)))
    whole = requests + 20
    indices = torch.randperm(whole, generator=torch.Generator().manual_seed(0))[:requests]
    indices = indices.to(torch.int32).to(DEVICE)
    indices[blocks == 0] = 1 << 20
    table = torch.arange(1, whole * columns + 1, dtype=torch.int32, device=DEVICE).view(whole, columns)
    table[::3, 5] = 0
    computed = int32(*(pick.randrange(16 * columns - 16) for _ in range(whole)))
    sampled, seen = int32(*(pick.randrange(12) for _ in range(whole))), 0
    for align in (None, Align.of([table], computed, 16)):
        for mapping in (None, indices):
            plans = [
                CommitPlan(*torch.full((4, requests), -7, dtype=torch.int32, device=DEVICE))
                for _ in "ab"
            ]
            for implementation, plan in zip((ops, reference), plans, strict=True):
                implementation.plan(Batch(blocks, starts), sampled, mapping, align, plan)
            assert all(torch.equal(x, y) for x, y in zip(*plans, strict=True))
            seen += int((plans[0].block_end > 0).sum())
    assert seen > 20


def test_a_step_over_a_block_boundary_writes_both_blocks():
    """The block that ends there is the one the step started from: read before it is written."""
    shape = Shape(T=4, H=2, HV=4)
    step = case(shape, [4, 4, PADDING, 4], spare=4)
    blocks = [int(block) for block in step.batch.state_blocks]
    fresh = [5, 6, 7]
    table = torch.zeros(4, 3, dtype=torch.int32, device=DEVICE)
    for row, block in zip((0, 1, 3), fresh, strict=True):
        table[row] = int32(blocks[row], block, 0)
    computed, sampled = int32(14, 13, 0, 12), [4, 2, 1, 4]  # 2 beyond the block boundary, 1 short, on it
    conv = step.cache.conv.clone()
    scheme = PerToken(step.cache.state[step.batch.state_blocks.long()], shape.T)
    scheme.table[2] = 0
    outputs, out = scheme.step(step.rows, step.gating, step.batch.starts), step.out()
    ops.verify(step.rows, step.gating, step.cache, step.batch, out)
    assert torch.equal(bits(out[:8]), bits(outputs[:8]))
    plan = make_plan(step, sampled, Align.of([table], computed, 16))
    before = step.whole.clone()
    ops.Commit([(step.cache, step.gating, 0)], 3)(step.batch, plan)

    wanted = {fresh[0]: (0, 4), blocks[0]: (0, 2), blocks[1]: (1, 2), blocks[3]: (3, 4)}
    assert changed_blocks(step, before) == sorted(wanted)
    for block, (request, length) in wanted.items():
        state = scheme.accept([length] * 4)[request]
        assert torch.equal(bits(step.cache.state[block]), bits(state))
        kept = conv[blocks[request], :, length - 1 : length + 2]
        assert torch.equal(step.cache.conv[block, :, :3], kept)


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16], ids=str)
def test_the_reference_agrees(state):
    shape = Shape(T=5, H=2, HV=4, model=torch.float32, state=state)
    step, other = (case(shape, [5, PADDING, 1, 3]) for _ in "ab")
    lengths = [4, 0, 1, 3]
    mine, theirs = replay(step, lengths, ops), replay(other, lengths, reference)
    assert torch.equal(bits(step.cache.records), bits(other.cache.records))
    for i in step.active:
        rows = slice(*step.batch.starts[i : i + 2].tolist())
        assert torch.equal(mine.conv[i], theirs.conv[i])
        torch.testing.assert_close(mine.outputs[rows], theirs.outputs[rows], rtol=1e-5, atol=1e-5)
        bound = TOLERANCE[state]
        torch.testing.assert_close(mine.state[i], theirs.state[i], rtol=bound, atol=bound / 10)


def test_rows_that_would_be_rounded_are_refused():
    step = case(Shape(), [2])
    wide = step.rows._replace(b=step.rows.b.float())
    with pytest.raises(ValueError, match="bfloat16"):
        ops.verify(wide, step.gating, step.cache, step.batch, step.out())


def test_layers_that_differ_are_refused():
    one, other = case(Shape(), [2]), case(Shape(HV=4), [2])
    with pytest.raises(ValueError, match="differ"):
        ops.Commit([(one.cache, one.gating, 0), (other.cache, other.gating, 0)], 3)


class TestControls:
    """The comparison of the tests must see each of these."""

    COUNTS, LENGTHS = (4, PADDING, 3), [3, 0, 2]

    def outcomes(self, **changed) -> set[str]:
        """`changed`: functions of the operation, in place of Triton's."""
        step = case(Shape(), list(self.COUNTS))
        expected = per_token_outcome(step, self.LENGTHS)
        functions = {"verify": ops.verify, "plan": ops.plan, "Commit": ops.Commit} | changed
        return differing(step, replay(step, self.LENGTHS, SimpleNamespace(**functions)), expected)

    def test_nothing_changed(self):
        assert self.outcomes() == set()

    def test_a_commit_one_row_short(self):
        def plan(*args):
            ops.plan(*args)
            args[-1].rows_to_commit.sub_(1)

        assert self.outcomes(plan=plan) == {"state", "conv"}

    def test_another_beta(self):
        """By one step of bf16, in one row and head."""

        def verify(rows, gating, cache, batch, out):
            ops.verify(rows, gating, cache, batch, out)
            cache.records[int(batch.state_blocks[0]), 0].view(torch.int16)[-1] ^= 1

        assert self.outcomes(verify=verify) == {"state"}

    def test_a_conv_state_off_by_one(self):
        def commit(layers, history):
            return ops.Commit(
                [(p._replace(conv=p.conv[:, :, 1:]), *rest) for p, *rest in layers], history
            )

        assert self.outcomes(Commit=commit) == {"conv"}

    def test_another_decay_in_one_head(self):
        def verify(rows, gating, cache, batch, out):
            gating.A_log[1] += noise(1, 1)[0] * 1e-3
            ops.verify(rows, gating, cache, batch, out)

        assert self.outcomes(verify=verify) == {"outputs", "state"}

    def test_records_of_another_request(self):
        def verify(rows, gating, cache, batch, out):
            ops.verify(rows, gating, cache, batch, out)
            one, other = batch.state_blocks[0].item(), batch.state_blocks[2].item()
            cache.records[other, 0] = cache.records[one, 0]

        assert self.outcomes(verify=verify) == {"state"}

    def test_no_commit(self):
        assert self.outcomes(Commit=lambda *_: lambda *_: None) == {"state", "conv"}
