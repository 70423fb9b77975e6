"""Replay against the per-token scheme: every bit of outputs and states."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from tests.unit.replay.cases import (
    PADDING,
    Case,
    Outcome,
    Shape,
    case,
    differing,
    noise,
    replay,
    result,
    rows,
)
from tests.unit.replay.interpreted.per_token import PerToken, per_token_outcome
from vllm_eagle_ext.replay.ops import triton as ops
from vllm_eagle_ext.replay.ops.types import Batch

GROUPED = Shape(T=4, H=2, HV=4, DK=20, DV=40)  # no power of two, two value tiles


def check(case: Case, lengths: list[int]) -> None:
    expected = per_token_outcome(case, lengths)
    assert differing(case, replay(case, lengths, ops), expected) == set()


def check_lengths(shape: Shape, lengths: list[int], seed: int) -> None:
    """One verify of T rows, committed in a state block per length."""
    T = shape.T
    single = case(shape, [T], seed, spare=len(lengths))
    block = int(single.batch.state_blocks[0])
    scheme = PerToken(single.cache.state[block][None], T)
    expected = scheme.step(single.rows, single.gating, single.batch.starts)
    out = single.out()
    ops.verify(single.rows, single.gating, single.cache, single.batch, out)

    copies = [block + 1 + i for i in range(len(lengths))]
    single.whole[copies] = single.whole[block].clone()
    for copy, length in zip(copies, lengths, strict=True):
        single.cache.records[copy, length:] = float("nan")
    starts = torch.arange(len(lengths) + 1, dtype=torch.int32, device=out.device) * T
    many = replace(single, batch=Batch(single.sampled(copies), starts), counts=[T] * len(lengths))
    plan = many.plan()
    ops.plan(many.batch, many.sampled(lengths), None, None, plan)
    assert plan.rows_to_commit.tolist() == lengths
    ops.Commit([(many.cache, many.gating, 0)], shape.W - 1)(many.batch, plan)

    states = torch.cat([scheme.accept([length]) for length in lengths])
    mine, outputs = result(many, out.repeat(len(lengths), 1, 1)), expected.repeat(len(lengths), 1, 1)
    assert differing(many, mine, Outcome(outputs, states, mine.conv)) == set()


BF16, LONG = {"state": torch.bfloat16}, pytest.mark.long


@pytest.mark.parametrize(
    ("T", "sizes"),
    [
        *((T, {"HV": HV}) for T, HV in [(2, 2), (4, 2), (8, 2), (9, 2), (16, 1), (17, 1)]),
        (2, BF16),
        (9, BF16),
        *(
            pytest.param(T, {"H": 2, "HV": 4} | state, marks=LONG)
            for T in (8, 16, 17, 33)
            for state in ({}, BF16)
        ),
    ],
    ids=str,
)
def test_every_accept_length(T, sizes):
    check_lengths(Shape(T=T, **sizes), list(range(1, T + 1)), seed=T)


def test_accept_lengths_of_the_longest_step():
    check_lengths(Shape(T=33, HV=1), [1, 2, 16, 32, 33], seed=33)


RAGGED = [1, PADDING, 4, 0, 2, PADDING], [1, 0, 3, 0, 1, 0]


@pytest.mark.parametrize(
    ("shape", "counts", "lengths"),
    [
        (GROUPED, *RAGGED),
        (Shape(state=torch.bfloat16), *RAGGED),
        (Shape(model=torch.float32), [2, 3], [2, 1]),
        *((Shape(HV=1, gap=gap), [1, 2], [1, 1]) for gap in (0, 4, 8, 1040)),
        *(  # published widths
            (Shape(T=3, H=1, HV=1, DK=DK, DV=DV), [3], [2])
            for DK, DV in [(128, 128), (64, 128), (128, 32)]
        ),
    ],
    ids=str,
)
def test_a_step(shape, counts, lengths):
    check(case(shape, counts), lengths)


@pytest.mark.parametrize(("a", "b"), [(60.0, 60.0), (60.0, -60.0), (-60.0, 60.0), (-60.0, -60.0)])
def test_extreme_gates(a, b):
    """In every head, one of which forgets at once, one of which never does."""
    step = case(Shape(), [3])
    step.rows.a[:], step.rows.b[:] = a, b
    step.gating.A_log.copy_(torch.tensor([8.0, -20.0]))
    check(step, [3])


@pytest.mark.parametrize("norm", [0.0, 1e-20])
def test_keys_without_length(norm):
    """Zeros of either sign too: a loaded state loses the sign of its zeros."""
    step = case(Shape(), [4])
    step.rows.key[1:3] *= norm
    step.rows.query[2] *= norm
    step.cache.state[:, :, ::2] *= -0.0
    step.rows.value[0] *= -0.0
    check(step, [3])


def test_a_state_of_negative_zeros():
    step = case(Shape(), [2])
    for tensor, value in ((step.cache.state, -0.0), (step.rows.value, 0.0)):
        tensor.fill_(value)
    for tensor, value in ((step.rows.key, -1.0), (step.rows.query, 1.0)):
        tensor.fill_(value)
    check(step, [2])


def run_chain(shape: Shape, requests: int, steps: int) -> int:
    """Steps of random rows and accept lengths; how many different accept lengths there were."""
    pick = random.Random(shape.T)
    step = case(shape, [shape.T] * requests)
    scheme = PerToken(step.cache.state[step.batch.state_blocks.long()], shape.T)
    commit, seen = ops.Commit([(step.cache, step.gating, 0)], shape.W - 1), set()
    for number in range(steps):
        step.counts = [pick.randint(1, shape.T) for _ in range(requests)]
        lengths = [pick.randint(1, count) for count in step.counts]
        starts = torch.tensor([0, *step.counts]).cumsum(0).to(torch.int32).to(step.whole.device)
        step.rows, step.batch = rows(shape, sum(step.counts), number), step.batch._replace(starts=starts)
        out, plan = step.out(), step.plan()
        step.cache.records.fill_(float("nan"))
        ops.verify(step.rows, step.gating, step.cache, step.batch, out)
        ops.plan(step.batch, step.sampled(lengths), None, None, plan)
        commit(step.batch, plan)
        mine = result(step, out)
        outputs = scheme.step(step.rows, step.gating, starts)
        expected = Outcome(outputs, scheme.accept(lengths), mine.conv)
        assert differing(step, mine, expected) == set(), f"step {number}"
        seen |= set(lengths)
    return len(seen)


def test_a_chain_of_steps():
    assert run_chain(Shape(T=3), requests=1, steps=16) == 3


@pytest.mark.long
@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16], ids=str)
def test_a_chain_of_256_steps(state):
    assert run_chain(Shape(T=4, state=state), requests=2, steps=256) == 4


def test_several_layers_in_one_commit():
    """Each with state blocks, gates and rows of its own."""
    counts, lengths = [3, PADDING, 2], [2, 0, 1]
    layers = [case(Shape(), counts, seed=7), case(Shape(), counts, seed=7)]
    other = layers[1]
    other.whole[:] = case(Shape(), counts, seed=8).whole
    other.gating.A_log.copy_(noise(9, 2))
    other.rows.value.mul_(2)
    expected = [per_token_outcome(layer, lengths) for layer in layers]
    outs = [layer.out() for layer in layers]
    for layer, out in zip(layers, outs, strict=True):
        ops.verify(layer.rows, layer.gating, layer.cache, layer.batch, out)
    plan = layers[0].plan()
    ops.plan(layers[0].batch, layers[0].sampled(lengths), None, None, plan)
    ops.Commit([(layer.cache, layer.gating, 0) for layer in layers], 3)(layers[0].batch, plan)
    for layer, out, wanted in zip(layers, outs, expected, strict=True):
        assert differing(layer, result(layer, out), wanted) == set()
    assert differing(layers[0], *expected) == {"outputs", "state", "conv"}
