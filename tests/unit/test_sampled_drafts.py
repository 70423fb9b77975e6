"""Shortening sampled drafts changes no distribution, unless what shortens them looks at the drawn token.

vLLM's own rejection sampler, on chains whose texts can be listed with their chances.
"""

from __future__ import annotations

import pytest

from tests.support.draft_cuts import BIASED, LOSSLESS, chances_of_texts, tables
from tests.support.engine import engine_environment, run_child
from tests.support.sampling import fit

SIZE = 10_000
ALARM, SEEN = 1e-4, 1e-12  # p of a right rule by chance; of a wrong one at most


@pytest.fixture(scope="module")
def drawn():
    job = {"seed": 1, "size": SIZE}
    around = engine_environment("v1")
    results, _ = run_child("draft_cuts_process", job, environment=around, timeout_s=300)
    return results


def judged(drawn, name):
    found = drawn[name]
    result = fit(found["texts"], chances_of_texts(tables()[0]))
    away = (result.chi_square - result.freedom) / (2 * result.freedom) ** 0.5
    print(f"\n{name}: p {result.p:.3g}, {away:.1f} standard deviations, {found['kept']:.2f} verified")
    return result.p


@pytest.mark.parametrize("how", ["sampled", "greedy"])
@pytest.mark.parametrize("rule", LOSSLESS)
def test_texts_follow_the_target(drawn, rule, how):
    assert judged(drawn, f"{rule}, {how}") > ALARM
    assert (drawn[f"{rule}, {how}"]["kept"] < 0.95) == (rule != "K fixed")


@pytest.mark.parametrize("rule", BIASED)
def test_a_rule_that_looks_at_the_drawn_token_is_seen(drawn, rule):
    assert judged(drawn, f"{rule}, sampled") < SEEN


@pytest.mark.parametrize("rule", [rule for rule in BIASED if "likeliest" not in rule])
def test_the_token_of_a_greedy_draft_says_no_more_than_its_distribution(drawn, rule):
    """So that vLLM's default, greedy drafts of sampled requests, may be cut by either."""
    assert judged(drawn, f"{rule}, greedy") > ALARM
    assert 0.1 < drawn[f"{rule}, greedy"]["kept"] < 0.95


def test_the_draft_is_neither_right_nor_hopeless():
    target, draft = tables()
    overlap = target.minimum(draft).sum(1)
    assert 0.5 < overlap.min() < overlap.max() < 0.95
