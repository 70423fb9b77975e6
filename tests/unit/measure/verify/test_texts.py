"""Greedy texts: where they diverge, and what counts as a near-tie."""

from __future__ import annotations

import math

import pytest

from vllm_eagle_ext.measure.verify.texts import TIE_GAP, Divergence, divergences, judge_texts, with_gaps
from vllm_eagle_ext.measure.verify.verdicts import Verdict

MINE = [[1, 2, 3], [4, 5, 6], [7, 8]]
PROMPTS = [[10], [11, 12], [13]]


def test_divergences_are_the_first_difference():
    found = divergences(MINE, [[1, 2, 3], [4, 9, 9], [7, 8]])
    assert [(one.prompt, one.at, one.tokens) for one in found] == [(1, 1, (5, 9))]


def test_a_text_that_ends_early_diverges_there():
    found = divergences(MINE, [[1, 2, 3], [4, 5, 6], [7]])
    assert [(one.prompt, one.at, one.tokens) for one in found] == [(2, 1, (8, None))]


def test_gaps_are_asked_after_the_common_prefix():
    asked = []

    def ask(contexts):
        asked.extend(contexts)
        return [{5: -0.7, 9: -0.75}]

    found = with_gaps([Divergence(1, 1, (5, 9))], PROMPTS, MINE, ask)
    assert asked == [[11, 12, 4]]
    assert found[0].gap == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("tokens", "row", "gap"),
    [
        ((5, 9), {5: -0.1, 9: -0.3}, 0.2),
        ((9, 5), {5: -0.1, 9: -0.3}, 0.2),
        ((5, 9), {1: -0.1, 5: -0.2, 9: -0.3}, 0.2),  # neither is the likeliest
        ((5, 9), {1: -0.69, 2: -0.70}, math.inf),  # a near-tie, but not of these two
        ((5, None), {5: -0.69, 2: -0.70}, math.inf),
    ],
)
def test_gap(tokens, row, gap):
    found = with_gaps([Divergence(0, 0, tokens)], PROMPTS, MINE, lambda _: [row])
    assert found[0].gap == pytest.approx(gap)


def test_nothing_is_asked_for_equal_texts():
    assert with_gaps([], PROMPTS, MINE, lambda _: pytest.fail("asked")) == []


def judged(*gaps, bound=0.1):
    found = [Divergence(number, 1, (5, 9), gap) for number, gap in enumerate(gaps)]
    return judge_texts("greedy texts", found, MINE, bound=bound)


def test_equal_texts_pass():
    assert judged().verdict is Verdict.PASSED
    assert "3 of 3 texts equal" in judged().said


def test_near_ties_pass_and_are_counted_apart():
    check = judged(0.02, 0.1)
    assert check.verdict is Verdict.PASSED
    assert (check.figures["equal"], check.figures["near_ties"]) == (1, 2)
    assert "gap up to 0.100" in check.said


def test_two_steps_of_bf16_are_a_near_tie():
    """As logprobs of float32 say it: a little more than 0.25."""
    assert TIE_GAP == 0.25
    assert judged(0.2500001, bound=TIE_GAP).verdict is Verdict.PASSED
    assert judged(0.26, bound=TIE_GAP).verdict is Verdict.FAILED


@pytest.mark.parametrize("gap", [0.11, 3.0, math.inf])
def test_a_gap_beyond_the_bound_fails(gap):
    check = judged(0.02, gap)
    assert check.verdict is Verdict.FAILED
    assert "prompt 2, token 2: 5 and 9" in check.details[0]
    assert len(check.figures["diverged"]) == 1


def test_the_bound_decides():
    assert judged(0.02, bound=0.001).verdict is Verdict.FAILED
