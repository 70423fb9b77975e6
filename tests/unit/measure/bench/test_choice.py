"""Which K, which schedule, and what is printed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.measure.bench.made_up import FAST, MadeUpTune, load
from vllm_eagle_ext.measure.bench.results import PLAIN, SCHEDULE_KEY, Measurement, Variant
from vllm_eagle_ext.measure.bench.runner import swept
from vllm_eagle_ext.measure.bench.summary import (
    best_by_requests,
    choose_served,
    merged_schedule,
    surface_of,
    worth_serving,
)

BEST = st.dictionaries(st.integers(1, 512), st.integers(0, 15), min_size=1)
FIXED = Variant(kind="ours", draft=FAST, k=2)
OTHER = Variant(kind="schedule", draft=FAST, k=4, schedule=((1, 1, 4), (2, 4, 2), (5, 16, 1)))
ROUNDS = [1 + 0.001 * number for number in range(6)]


def surface(made):
    return surface_of(made.sweep())


def chosen(made, gains, rounds=ROUNDS):
    """The choice by gains at each number of requests, alike in both contexts.

    Args:
        rounds: what a gain is multiplied by in each.
    """
    runs = made.cells("sweep", swept(made.settings()))
    for served, by_requests in {PLAIN: dict.fromkeys(made.concurrency, 1.0), **gains}.items():
        runs += [
            Measurement(
                stage="closing", variant=served, load=at, repeat=number, step_s=0.01,
                tokens_per_s=100 * by_requests[at.concurrency] * (1 if served == PLAIN else factor),
            )
            for at in made.settings().loads
            for number, factor in enumerate(rounds)
        ]  # fmt: skip
    return choose_served(made.report_of(runs))


@settings(deadline=None)
@given(BEST)
def test_vllm_looks_up_what_the_schedule_was_made_of(best):
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    schedule = merged_schedule(best)
    lookup = build_dynamic_sd_schedule_lookup([list(entry) for entry in schedule], 600, 15)
    levels = sorted(best)
    for requests in range(1, 601):
        measured_at = next((level for level in levels if level >= requests), levels[-1])
        assert lookup[requests] == best[measured_at]
    # Neighbours of one length are one entry.
    assert schedule[0][0] == 1
    assert all(a[2] != b[2] and a[1] + 1 == b[0] for a, b in pairwise(schedule))


def test_k_falls_with_the_load():
    made = MadeUpTune()
    best = best_by_requests(surface(made), made.ks, made.concurrency)
    assert best == {1: 4, 4: 1, 16: 0}
    assert worth_serving(made.settings(), surface(made))[0].k in (1, 2)


def test_one_percent_is_no_reason_for_another_length():
    """K=2 and K=4 alike within noise: the length of the level before stays."""
    made = MadeUpTune(
        step_s=lambda at, k: 0.01 if k in (0, 2) else 0.01 * 2.7731 / 2.19 * (0.995 if k == 4 else 2),
        rate=0.7, own_noise=0.0, concurrency=(1, 2, 4, 8),
    )  # fmt: skip
    assert len(set(best_by_requests(surface(made), made.ks, made.concurrency).values())) == 1


def test_what_is_worth_a_closing_round():
    wanted = MadeUpTune().settings()
    kinds = [v.kind for v in worth_serving(wanted, surface(MadeUpTune()))]
    assert kinds == ["ours", "schedule"]
    asked = worth_serving(wanted.model_copy(update={"adaptive": True}), surface(MadeUpTune()))
    assert [v.kind for v in asked] == ["ours", "schedule", "adaptive"]
    flat = MadeUpTune(step_s=lambda at, k: 0.01 + 0.0001 * k)
    assert worth_serving(flat.settings(), surface(flat)) == [Variant(kind="ours", draft=FAST, k=4)]
    useless = MadeUpTune(step_s=lambda at, k: 0.01 * (1 + 3 * k))
    assert worth_serving(useless.settings(), surface(useless)) == []


def test_the_one_that_gains_most_is_printed():
    gains = {FIXED: {1: 1.5, 4: 1.3, 16: 1.1}, OTHER: {1: 1.8, 4: 1.3, 16: 1.2}}
    choice = chosen(MadeUpTune(), gains)
    assert (choice.served, choice.slower, choice.undecided, choice.exit_code) == (OTHER, [], [], 0)
    assert choice.config.speculative_config[SCHEDULE_KEY] == [[1, 1, 4], [2, 4, 2], [5, 16, 1]]
    assert choice.gain.low < choice.gain.median < choice.gain.high
    assert choice.gain.median == pytest.approx((1.8 * 1.3 * 1.2) ** (1 / 3), rel=0.01)


def test_being_slower_nowhere_comes_first():
    gains = {FIXED: {1: 3.0, 4: 2.0, 16: 0.9}, OTHER: {1: 1.2, 4: 1.1, 16: 1.0}}
    assert chosen(MadeUpTune(), gains).served == OTHER


def test_of_equals_one_k_is_printed():
    same = {1: 1.5, 4: 1.3, 16: 1.1}
    assert chosen(MadeUpTune(), {FIXED: same, OTHER: same}).served == FIXED


@pytest.mark.parametrize("high", [0.999, 1.0])
def test_slower_is_the_whole_interval(high):
    made = MadeUpTune(concurrency=(1, 4), contexts=(64,))
    choice = chosen(made, {FIXED: {1: 0.9, 4: 1.1}}, rounds=[1.0, high / 0.9])
    at = load(1, 64)
    assert (choice.slower, choice.undecided) == (([at], []) if high < 1 else ([], [at]))
    assert choice.exit_code == (1 if high < 1 else 2)


@pytest.mark.parametrize(
    ("gains", "printed"),
    [
        ({FIXED: {1: 0.9, 4: 0.8, 16: 0.5}, OTHER: {1: 0.99, 4: 0.98, 16: 0.9}}, None),
        ({FIXED: {1: 1.1, 4: 0.8, 16: 0.5}, OTHER: {1: 0.99, 4: 0.98, 16: 0.9}}, FIXED),
        ({FIXED: {1: 1.2, 4: 0.9, 16: 0.9}}, FIXED),
    ],
    ids=["everywhere", "but at one", "alone"],
)
def test_no_draft_where_every_config_loses_at_every_load(gains, printed):
    """A gain at one load is kept, and said to be slower elsewhere."""
    choice = chosen(MadeUpTune(), gains)
    assert (choice.served == PLAIN) is (printed is None)
    assert choice.exit_code == (printed is not None)
    assert printed is not None or choice.slower == []
