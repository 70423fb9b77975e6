"""Replay by vLLM's C++ kernel against the per-token scheme on the same kernel, bit for bit."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

from tests.support import breakage
from tests.support.engine import has_gpu
from tests.unit.replay.cases import (
    FP32,
    PADDING,
    Case,
    Outcome,
    Shape,
    bits,
    case,
    conv_states,
    cpu_case,
    differing,
    of_size,
    replay,
    rows,
)
from vllm_eagle_ext.replay.ops import reference
from vllm_eagle_ext.replay.ops.types import Align, Batch, CommitPlan

if has_gpu():
    pytest.skip("vLLM's CPU kernels", allow_module_level=True)

from vllm_eagle_ext.replay.ops import cpu

BF16 = Shape(H=1, HV=3, DK=64, DV=64, state=torch.bfloat16)
WIDE = Shape(H=2, HV=6, DK=128, DV=128)
TS = (2, 4, 8, 9, 16, 17, 33)


def ops(T: int) -> SimpleNamespace:
    """The module as `cases.replay` calls it: a batch is prepared first."""

    def verify(rows, gating, cache, batch, out):
        cpu.verify(rows, gating, cache, cpu.prepare(batch, T), out)

    def commit_class(layers, history):
        apply = cpu.Commit(layers, history)
        return lambda batch, plan: apply(cpu.prepare(batch, T), plan)

    return SimpleNamespace(verify=verify, plan=cpu.plan, Commit=commit_class)


def per_token(made: Case, lengths: list[int]) -> Outcome:
    """vLLM's scheme: the state after row t in block t of the request."""
    shape, (tables,) = made.shape, cpu.prepare(made.batch, made.shape.T).host_tables
    requests = len(tables.state_blocks)
    states = torch.zeros(1 + requests * shape.T, shape.HV, shape.DV, shape.DK, dtype=shape.state)
    table = 1 + torch.arange(requests * shape.T, dtype=torch.int32).view(requests, shape.T)
    states[table[:, 0].long()] = made.cache.state[torch.from_numpy(tables.state_blocks).long()]
    used = made.rows._make(tensor[: len(tables.request)] for tensor in made.rows)
    first = torch.ones(requests, dtype=torch.int32)
    out = made.out()
    out[: len(tables.request)] = cpu._recur(used, made.gating, states, table, first, tables.starts)
    state = made.cache.state[made.batch.state_blocks.long()]
    kept = torch.tensor([lengths[i] - 1 for i in tables.active.tolist()])
    state[tables.active] = states[table[torch.arange(requests), kept].long()]
    return Outcome(out, state, conv_states(made, lengths))


def compare(made: Case, twin: Case, lengths: list[int]) -> set[str]:
    expected = per_token(twin, lengths)
    return differing(made, replay(made, lengths, ops(made.shape.T)), expected)


@pytest.mark.parametrize("T", TS)
@pytest.mark.parametrize("shape", [FP32, BF16, WIDE], ids=["fp32", "bf16", "wide"])
def test_every_accept_length(shape, T):
    shape = of_size(shape, T)
    lengths = list(range(1, T + 1))
    assert not compare(*(cpu_case(shape, [T] * T) for _ in "ab"), lengths)


@pytest.mark.parametrize("shape", [FP32, BF16], ids=["fp32", "bf16"])
def test_ragged_rows_and_padding(shape):
    shape = of_size(shape, 9)
    counts = [3, 9, 1, 5, PADDING]
    made, twin = (cpu_case(shape, counts, seed=3) for _ in "ab")
    before = made.whole.clone()
    assert not compare(made, twin, [2, 9, 1, 4, 0])
    assert torch.equal(made.whole[0], before[0])  # the null block


def test_verify_leaves_the_committed_state_alone():
    made = cpu_case(of_size(FP32, 8), [8, 5])
    before = made.cache.state[made.batch.state_blocks.long()]
    ops(8).verify(made.rows, made.gating, made.cache, made.batch, made.out())
    assert torch.equal(bits(made.cache.state[made.batch.state_blocks.long()]), bits(before))


@pytest.mark.parametrize("gate", [-60.0, 60.0])
@pytest.mark.parametrize("key", [0.0, 1e-20])
def test_extreme_gates_and_keys(gate, key):
    shape = of_size(FP32, 8)
    pair = [cpu_case(shape, [8] * 8) for _ in "ab"]
    for made in pair:
        made.rows.a.fill_(gate)
        made.rows.b.fill_(-gate)
        made.rows.key[::2] *= key
        made.gating.A_log.fill_(4.0)
    assert not compare(*pair, list(range(1, 9)))


@pytest.mark.parametrize("shape", [FP32, BF16], ids=["fp32", "bf16"])
def test_a_chain_of_steps(shape):
    """256 steps of random accept lengths: what one step leaves, the next one starts from."""
    shape, choose = of_size(shape, 8), random.Random(0)
    made, twin = (cpu_case(shape, [8, 8]) for _ in "ab")
    where = made.batch.state_blocks.long()
    for step in range(256):
        lengths = [choose.randint(1, 8) for _ in "ab"]
        made.rows = twin.rows = rows(shape, 16, seed=1000 + step)
        made.cache.records.fill_(float("nan"))
        expected = per_token(twin, lengths)
        assert not differing(made, replay(made, lengths, ops(8)), expected), step
        twin.cache.state[where] = expected.state
        twin.cache.conv[where, :, :3] = expected.conv
    assert torch.isfinite(made.cache.state[where].float()).all()


@pytest.mark.parametrize("how", breakage.BREAKAGES)
def test_the_comparison_sees(how, monkeypatch):
    shape = of_size(FP32, 8)
    pair = [cpu_case(shape, [8] * 7) for _ in "ab"]
    breakage.apply(how, monkeypatch.setattr)
    assert compare(*pair, list(range(2, 9))) - {"outputs"}


def test_agrees_with_the_reference():
    """In bf16 rows and an fp32 state: outputs to their rounding, states to 1e-5 of the largest."""
    shape, lengths = of_size(FP32, 16), [1, 5, 16]
    made, twin = (cpu_case(shape, [16] * 3) for _ in "ab")
    flip_states(twin)  # a CPU block's bytes are [HV, DK, DV]
    expected = replay(twin, lengths, reference)
    flip_states(twin)
    mine = replay(made, lengths, ops(16))
    theirs = twin.cache.state[twin.batch.state_blocks.long()]
    assert float((mine.state - theirs).abs().max() / theirs.abs().max()) < 1e-5
    assert float((mine.outputs - expected.outputs).abs().max() / expected.outputs.abs().max()) < 1e-2


def flip_states(made: Case) -> None:
    state = made.cache.state
    state.copy_(state.transpose(-1, -2).clone())


def test_states_at_block_boundaries():
    """A step that passes a block boundary leaves the state there, too; one that ends on it only that."""
    shape, size = of_size(FP32, 8), 16
    computed, lengths = [10, 12, 3], [8, 4, 5]  # passes it, ends on it, stays
    table = torch.tensor([[7, 8], [9, 10], [11, 12]], dtype=torch.int32)
    made, twin = (case(shape, [8] * 3, spare=16) for _ in "ab")
    blocks_now = table[torch.arange(3), [1, 0, 0]]  # where a builder finds the running state
    for each in (made, twin):
        each.cache.state[blocks_now.long()] = each.cache.state[1:4]
        scratch = torch.tensor([13, 14, 15], dtype=torch.int32)
        each.batch = Batch(blocks_now, each.batch.starts, scratch)
    align = Align.of([table], torch.tensor(computed, dtype=torch.int32), size)
    plan, run = made.plan(), ops(8)
    run.verify(made.rows, made.gating, made.cache, made.batch, made.out())
    cpu.plan(made.batch, made.sampled(lengths), None, align, plan)
    expected_plan = CommitPlan(*torch.tensor([[8, 4, 5], [8, 9, 11], [7, 0, 0], [6, 0, 0]]))
    assert all(torch.equal(x, y) for x, y in zip(plan, expected_plan, strict=True))
    conv_at_end, final_conv = conv_states(made, [6, 1, 1])[0], conv_states(made, lengths)
    run.Commit([(made.cache, made.gating, 0)], 3)(made.batch, plan)
    at_end, final = per_token(twin, [6, 4, 5]), per_token(twin, lengths)
    assert torch.equal(bits(made.cache.state[7]), bits(at_end.state[0]))
    assert torch.equal(bits(made.cache.state[plan.final.long()]), bits(final.state))
    assert torch.equal(made.cache.conv[7, :, :3], conv_at_end)
    assert torch.equal(made.cache.conv[plan.final.long(), :, :3], final_conv)


def test_a_row_that_samples_nothing_is_still_committed():
    """A chunk of one token inside a prompt, run as a verify row with placeholders behind it."""
    made = cpu_case(of_size(FP32, 4), [4, 4])
    plan = made.plan()
    cpu.plan(made.batch, made.sampled([0, 4]), None, None, plan)
    assert plan.rows_to_commit.tolist() == [1, 4]
