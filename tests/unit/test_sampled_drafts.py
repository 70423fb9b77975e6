"""A K that follows the number of requests changes no distribution; one by the drawn token does.

vLLM's own rejection sampler, on chains whose texts can be listed with their chances.
"""

from __future__ import annotations

import pytest

from tests.support.drawn_chains import K, chances_of_texts, tables
from tests.support.engine import engine_environment, run_child
from tests.support.sampling import fit

pytestmark = pytest.mark.promise(
    "sampling: no K by the load changes the distribution, and one by the drawn token is seen"
)

SIZE = 10_000
ALARM, SEEN = 1e-4, 1e-12  # p of a right rule by chance; of a wrong one at most


@pytest.fixture(scope="module")
def drawn():
    job = {"seed": 1, "size": SIZE}
    around = engine_environment("v1")
    results, _ = run_child("drawn_chains", job, environment=around, timeout_s=300)
    return results


def judged(drawn, name):
    result = fit(drawn[name]["texts"], chances_of_texts(tables()[0]))
    print(f"\n{name}: p {result.p:.3g}, {drawn[name]['kept']} of a draft verified")
    return result.p


@pytest.mark.parametrize(("rule", "kept"), [("K fixed", [K]), ("K by load", [0, 1, K])])
def test_texts_follow_the_target(drawn, rule, kept):
    assert judged(drawn, rule) > ALARM
    assert drawn[rule]["kept"] == kept


def test_a_rule_that_looks_at_the_drawn_token_is_seen(drawn):
    assert judged(drawn, "K by the drawn token") < SEEN


def test_the_draft_is_neither_right_nor_hopeless():
    target, draft = tables()
    overlap = target.minimum(draft).sum(1)
    assert 0.5 < overlap.min() < overlap.max() < 0.95
