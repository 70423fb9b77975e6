"""What a prompt's token adds to a step, from steps that differ by their prompts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_eagle_ext.draft_length.prompt_cost import SLOPES, PromptCost

BUCKET = (3, 4)


def observed(steps, seconds, noise=0.0, seed=0):
    draw, cost = random.Random(seed), PromptCost()
    for tokens in steps:
        cost.observe(BUCKET, 4, tokens, seconds(tokens) * draw.gauss(1.0, noise))
    return cost


@given(
    st.floats(1e-3, 1.0), st.floats(0.0, 1e-3),
    st.lists(st.integers(0, 4000), min_size=8, max_size=60),
)  # fmt: skip
def test_a_straight_line_is_found(decode, slope, steps):
    cost = observed([100, 1000, *steps], lambda tokens: decode + slope * tokens)
    assert cost.seconds_per_token == pytest.approx(slope, rel=1e-3, abs=1e-9)
    alone = cost.without_prompts(500, decode + slope * 500)
    assert alone == pytest.approx(max(decode, 0.05 * (decode + slope * 500)), rel=1e-3)


@pytest.mark.parametrize("steps", [[0, 512], [128, 512, 2048], [0, 0, 0, 0, 300]])
def test_noise_and_stragglers_hardly_move_it(steps):
    def seconds(tokens):
        return (0.01 + 2e-5 * tokens) * (10.0 if draw.random() < 0.02 else 1.0)

    draw = random.Random(1)
    cost = observed([draw.choice(steps) for _ in range(400)], seconds, noise=0.03)
    assert cost.seconds_per_token == pytest.approx(2e-5, rel=0.25)


def test_other_buckets_and_lengths_are_not_compared():
    cost = PromptCost()
    for step in range(50):
        cost.observe((step % 2, 4), 4, 100 * step, float(step))
        cost.observe((9, 4), step, 100 * step, float(step))
    assert cost.seconds_per_token == 0.0


def test_equally_many_tokens_tell_nothing_and_are_left_in():
    cost = observed([512] * 40, lambda tokens: 0.02, noise=0.1)
    assert cost.seconds_per_token == 0.0
    assert cost.without_prompts(512, 0.02) == 0.02


def test_it_follows_a_machine_that_changes():
    cost = observed([0, 500] * 40, lambda tokens: 0.01 + 1e-5 * tokens)
    for tokens in [0, 500] * SLOPES:
        cost.observe(BUCKET, 4, tokens, 0.03 + 4e-5 * tokens)
    assert cost.seconds_per_token == pytest.approx(4e-5)
