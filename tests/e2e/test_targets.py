"""One tiny target per family, each with a draft of a kind that is published for it.

Oracle drafts show that verification takes all of what is right and none of what is wrong; the states
show what the drafter is fed, to which oracle drafts are blind.
"""

from __future__ import annotations

import pytest

from tests.families import written_rows
from tests.support.targets.families import FAMILIES
from tests.support.targets.rows import EQUAL_IDS, OTHER_RUNS, beside, row_of
from tests.support.targets.run import serve_families

IN_SHORT = ("qwen3", "gpt-oss", "gemma4", "deepseek", "qwen3.5-moe")
IN_LONG = tuple(name for name in FAMILIES if name not in IN_SHORT)
PARALLEL = tuple(name for name, family in FAMILIES.items() if family.parallel)


ON_V2 = tuple(name for name, family in FAMILIES.items() if family.v2)


def pairs(*names: str) -> list:
    return [
        pytest.param(FAMILIES[name], pair, id=f"{name}: {pair.title}")
        for name in names
        for pair in FAMILIES[name].pairs
    ]


@pytest.fixture(scope="module")
def short():
    return serve_families(IN_SHORT)


@pytest.fixture(scope="module")
def long():
    return serve_families(IN_LONG)


@pytest.fixture(scope="module")
def parallel():
    return serve_families(PARALLEL, ranks=2)


@pytest.fixture(scope="module")
def v2():
    return serve_families(ON_V2, runner="v2")


def check(family, pair, served):
    assert "error" not in served, served
    assert max(served["distinct_tokens"]) >= 5  # a text that tells one position from another
    run = served["pairs"][pair.title]
    assert "error" not in run, run["trace"]
    print(run)
    assert run["drafter"] == pair.drafter
    always, never = run["always"], run["never"]
    assert always["drafts"] >= 8
    assert always["accepted"] == [always["drafts"]] * pair.k
    assert never["drafts"] >= 100
    assert never["accepted"] == [0] * pair.k
    assert run["own"]["drafts"] > always["drafts"]  # random drafters: the oracle is what is seen
    assert [run[drafts]["gaps"] for drafts in ("own", "always", "never")] == [[], [], []]
    if "reference" in run:
        assert run["reference"]["drafts"] >= 20
        assert min(run["reference"]["compared"]) >= 10
        assert min(run["reference"]["equal"]) >= EQUAL_IDS
    assert max(run["state_errors"].values()) < family.bound
    assert run["nearest_other_layer"] > 3 * family.bound


def written_row(row):
    (written,) = (
        r for r in written_rows() if r["target"] == row["target"] and r["draft"] == row["draft"]
    )
    return written


def check_row(family, pair, served):
    row = row_of(family, pair, served[family.name])
    written = written_row(row)
    assert row == {key: value for key, value in written.items() if key not in OTHER_RUNS}


def check_column(column, family, pair, served):
    written = written_row(row_of(family, pair, served[family.name]))
    assert beside(written, family, pair, served[family.name]) == written[column]


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize(("family", "pair"), pairs(*IN_SHORT))
def test_family(short, family, pair):
    check(family, pair, short[family.name])
    check_row(family, pair, short)


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize(("family", "pair"), pairs(*IN_LONG))
def test_other_family(long, family, pair):
    check(family, pair, long[family.name])
    check_row(family, pair, long)


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize(("family", "pair"), pairs(*PARALLEL))
def test_two_ranks(parallel, family, pair):
    check(family, pair, parallel[family.name])
    check_column("two_ranks", family, pair, parallel)


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.v2
@pytest.mark.parametrize(("family", "pair"), pairs(*ON_V2))
def test_v2(v2, family, pair):
    check(family, pair, v2[family.name])
    check_column("v2", family, pair, v2)
