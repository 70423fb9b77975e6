"""The tree of continuations, and the power of the test over it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.unit.measure.verify.toy import VOCAB, ToyEngine, likeliest, logprobs
from vllm_eagle_ext.measure.engine.load import Load
from vllm_eagle_ext.measure.verify.distribution import (
    BRANCHES,
    DEPTH,
    LEAST_P,
    OTHER,
    Fit,
    fit,
    judge_distribution,
    leaf_of,
    open_contexts,
    tree,
)
from vllm_eagle_ext.measure.verify.request import Verdict

CONTEXT = [3, 1]


def ask(contexts):
    return likeliest(contexts, BRANCHES)


@pytest.fixture(scope="module")
def leaves():
    return tree(CONTEXT, ask)


def drawn(heat: float, count: int = 500, seed: int = 5) -> list[list[int]]:
    engine = ToyEngine(heat=heat, rng=np.random.default_rng(seed))
    load = Load([CONTEXT] * count, max_tokens=DEPTH + 2, temperature=1.0)
    return [answer.tokens for answer in engine.load(load).answers]


def likeliest_text(leaves):
    return max((leaf for leaf in leaves if OTHER not in leaf), key=leaves.get)


def test_leaves_hold_all_of_the_probability(leaves):
    assert len(leaves) == 1 + 4 + 16 + 64
    assert sum(leaves.values()) == pytest.approx(1)


def test_a_leaf_has_the_product_of_its_steps(leaves):
    leaf = likeliest_text(leaves)
    steps = [logprobs([*CONTEXT, *leaf[:at]])[token] for at, token in enumerate(leaf)]
    assert leaves[leaf] == pytest.approx(math.exp(sum(steps)))


def test_every_text_has_its_leaf(leaves):
    """Also texts of tokens that are no branch, at each depth."""
    branch = next(iter(leaves))[0]
    others = [token for token in range(VOCAB) if token not in ask([CONTEXT])[0]]
    assert leaf_of([others[0], 1, 1], leaves) == (OTHER,)
    assert leaf_of([branch, *[VOCAB + 1] * 2], leaves) == (branch, OTHER)
    for text in drawn(1.0):
        assert leaf_of(text, leaves) in leaves


def test_true_samples_pass(leaves):
    ps = [fit(drawn(1.0, seed=seed), leaves).p for seed in range(40)]
    assert min(ps) > LEAST_P
    assert 0.2 < float(np.median(ps)) < 0.8  # uniform, as p values of true samples are


@pytest.mark.parametrize("heat", [1.5, 0.7])
def test_another_temperature_fails(leaves, heat):
    assert max(fit(drawn(heat, seed=seed), leaves).p for seed in range(10)) <= LEAST_P


def test_a_token_too_often_fails(leaves):
    """As if drafts were accepted too readily: a fifth of the texts begin as the likeliest does."""
    best = likeliest_text(leaves)
    texts = [list(best) if number % 5 == 0 else text for number, text in enumerate(drawn(1.0))]
    assert fit(texts, leaves).p <= LEAST_P


def test_p_is_that_of_tables():
    assert Fit(18.31, 11, 10).p == pytest.approx(0.05, abs=1e-4)


class TestVerdict:
    good, bad, certain = Fit(10.0, 11, 10), Fit(90.0, 11, 10), Fit(0.0, 1, 0)

    def judge(self, drafted, control=good, accepted=7):
        return judge_distribution(drafted, control, samples=1000, accepted=accepted)

    def test_passed(self):
        assert self.judge(self.good).verdict is Verdict.PASSED

    def test_failed(self):
        assert self.judge(self.bad).verdict is Verdict.FAILED

    @pytest.mark.parametrize(("drafted", "said"), [(good, "Only the control"), (bad, "as well")])
    def test_a_failing_control_is_not_the_draft(self, drafted, said):
        check = self.judge(drafted, self.bad)
        assert check.verdict is Verdict.WARNING
        assert said in check.details[1]
        assert "not the draft" in check.details[1]

    def test_rejected_drafts_alone_are_a_warning(self):
        check = self.judge(self.good, accepted=0)
        assert check.verdict is Verdict.WARNING
        assert "rejected" in check.details[1]
        assert self.judge(self.bad, accepted=0).verdict is Verdict.FAILED

    def test_a_certain_target_tells_nothing(self):
        assert self.judge(self.certain, self.certain).verdict is Verdict.NOT_APPLICABLE


def test_contexts_are_the_most_open_ones():
    """Prompt 1 is certain of all it says, 0 and 2 are not; of 2 the later tokens are open."""

    def ask(contexts):
        sure, even = {7: 0.0}, {7: math.log(0.5), 8: math.log(0.5)}
        return [
            even if context[0] == 0 or (context[0] == 2 and len(context) > 3) else sure
            for context in contexts
        ]

    chosen = open_contexts([[0], [1], [2]], [[5] * 9] * 3, ask)
    assert sorted(context[0] for context in chosen) == [0, 2]
    assert [2, 5, 5, 5] in chosen


def test_one_prompt_gives_one_context():
    assert len(open_contexts([[0]], [[5] * 9], ask)) == 1
