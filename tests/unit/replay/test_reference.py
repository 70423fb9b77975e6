"""The reference against the paper's matrix form, and against itself row by row."""

from __future__ import annotations

import math

import pytest
import torch

from tests.unit.replay.cases import PADDING, Case, Shape, bits, case, conv_states, differing, replay
from vllm_eagle_ext.replay.ops import reference
from vllm_eagle_ext.replay.ops.types import Align, Batch, Rows

EXACT = Shape(T=5, H=2, HV=4, DK=8, DV=12, model=torch.float64, state=torch.float64)


def by_matrices(step: Case, head: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Request 0 by S_t = S_{t-1} alpha (I - beta k k^T) + beta v k^T: outputs, state [DV, DK]."""
    group = step.shape.HV // step.shape.H
    state = step.cache.state[int(step.batch.state_blocks[0]), head].double()
    A, bias = (float(tensor[head]) for tensor in step.gating)
    outputs = []
    for i in range(length):
        query, key, value, a, b = (tensor[i].double() for tensor in step.rows)
        query, key = query[head // group], key[head // group]
        query, key = (row / (row.square().sum() + 1e-6).sqrt() for row in (query, key))
        alpha = math.exp(-math.exp(A) * math.log1p(math.exp(float(a[head]) + bias)))
        beta = 1 / (1 + math.exp(-float(b[head])))
        forget = torch.eye(len(key)).to(key) - beta * torch.outer(key, key)
        state = alpha * state @ forget + beta * torch.outer(value[head], key)
        outputs.append(state @ query / math.sqrt(len(query)))
    return torch.stack(outputs), state


@pytest.mark.parametrize("length", [1, 2, 5])
def test_matrix_form(length):
    step = case(EXACT, [5])
    expected = [by_matrices(step, head, length) for head in range(EXACT.HV)]
    mine = replay(step, [length], reference)
    for head, (outputs, state) in enumerate(expected):
        torch.testing.assert_close(mine.outputs[:length, head], outputs, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(mine.state[0, head], state, rtol=1e-12, atol=1e-12)


def test_one_row_at_a_time_is_the_same():
    step, single = (case(EXACT, [4, 4]) for _ in "ab")
    lengths = [3, 3]
    expected = replay(step, lengths, reference)
    single.cache.state.copy_(case(EXACT, [4, 4]).cache.state)
    outputs = single.out()
    every, starts = single.rows, torch.tensor([0, 1, 2], dtype=torch.int32)
    for i in range(3):
        rows, out = Rows(*(tensor[[i, 4 + i]] for tensor in every)), outputs[[i, 4 + i]]
        batch, plan = Batch(single.batch.state_blocks, starts), single.plan()
        reference.verify(rows, single.gating, single.cache, batch, out)
        reference.plan(batch, single.sampled([1, 1]), None, None, plan)
        reference.Commit([(single.cache, single.gating, 0)], 3)(batch, plan)
        outputs[[i, 4 + i]] = out
    blocks = step.batch.state_blocks.long()
    assert torch.equal(single.cache.state[blocks], expected.state)
    assert torch.equal(outputs[[0, 1, 2, 4, 5, 6]], expected.outputs[[0, 1, 2, 4, 5, 6]])


def test_gates_at_their_ends():
    """All forgotten and all written; nothing forgotten and nothing written."""
    step = case(EXACT, [1, 1])
    step.gating.A_log.fill_(5)
    step.rows.a[0], step.rows.b[0], step.rows.a[1], step.rows.b[1] = 60, 60, -60, -60
    before = step.cache.state[int(step.batch.state_blocks[1])].clone()
    mine = replay(step, [1, 1], reference)
    key = step.rows.key[0] / step.rows.key[0].square().sum(-1, keepdim=True).add(1e-6).sqrt()
    written = step.rows.value[0][:, :, None] * key.repeat_interleave(2, 0)[:, None]
    torch.testing.assert_close(mine.state[0], written)
    torch.testing.assert_close(mine.state[1], before)


def test_single_precision_is_close():
    step, single = (case(EXACT, [5, 2]) for _ in "ab")
    outs = step.out(), single.out()
    reference.verify(step.rows, step.gating, step.cache, step.batch, outs[0])
    reference.verify(single.rows, single.gating, single.cache, single.batch, outs[1], torch.float32)
    assert 0 < (outs[0] - outs[1]).abs().max() < 1e-5


def test_padding_is_inert_and_conv_states_move():
    step, lengths = case(Shape(), [3, PADDING, 0, 4]), [2, 3, 1, 4]
    expected, blocks, before = (
        conv_states(step, lengths),
        step.batch.state_blocks.tolist(),
        step.whole.clone(),
    )
    mine = replay(step, lengths, reference)
    assert all(torch.equal(mine.conv[i], expected[i]) for i in step.active)
    for target in {*range(len(before))} - {blocks[0], blocks[3]}:
        records = step.cache.records[target]  # overwritten by `replay` itself
        assert records.isnan().all()
        assert torch.equal(
            step.cache.state[target], case(Shape(), [3, PADDING, 0, 4]).cache.state[target]
        )
    assert differing(step, mine, mine) == set()


def test_a_step_over_a_block_boundary_writes_both_blocks():
    """A state block per 16 tokens; 14 stood before the step, the block boundary is after two rows."""
    step = case(Shape(), [4], spare=3)
    block = int(step.batch.state_blocks[0])
    table = torch.tensor([[block, 3]], dtype=torch.int32)
    conv, out, plan = step.cache.conv[block].clone(), step.out(), step.plan()
    wanted = {}
    for length, target in ((2, block), (3, 3)):
        wanted[target] = replay(case(Shape(), [4], spare=3), [length], reference).state[0]
    reference.verify(step.rows, step.gating, step.cache, step.batch, out)
    align = Align.of([table], torch.tensor([14], dtype=torch.int32), 16)
    reference.plan(step.batch, step.sampled([3]), None, align, plan)
    assert [int(tensor) for tensor in plan] == [3, 3, block, 2]
    reference.Commit([(step.cache, step.gating, 0)], 3)(step.batch, plan)
    for target, length in ((block, 2), (3, 3)):
        assert torch.equal(bits(step.cache.state[target]), bits(wanted[target]))
        assert torch.equal(step.cache.conv[target, :, :3], conv[:, length - 1 : length + 2])
