"""Which K, which schedule, and what is printed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.measure.tune.made_up import MadeUp
from vllm_eagle_ext.measure.intervals import median_interval
from vllm_eagle_ext.measure.tune.choice import (
    best_by_requests,
    best_fixed,
    choose_config,
    merged_schedule,
    worth_serving,
)
from vllm_eagle_ext.measure.tune.order import loads, swept
from vllm_eagle_ext.measure.tune.results import NONE, ServedConfig, ServedLoad, k_at
from vllm_eagle_ext.measure.tune.surface import surface_of

BEST = st.dictionaries(st.integers(1, 512), st.integers(0, 15), min_size=1)
FIXED, OTHER = (
    ServedConfig(name="fixed", k=2),
    ServedConfig(name="schedule", schedule=((1, 1, 4), (2, 4, 2), (5, 16, 1))),
)


def surface(made):
    return surface_of(made.cells("sweep", swept(made.settings())))


def measured(asked, **gains):
    """Gains by number of requests, alike in both contexts."""
    names = {"fixed": FIXED, "schedule": OTHER}
    return {
        (names[name], load): median_interval(
            [by_requests[load.requests] * (1 + 0.001 * n) for n in range(6)]
        )
        for name, by_requests in gains.items()
        for load in loads(asked)
    }


@settings(deadline=None)
@given(BEST)
def test_vllm_looks_up_what_the_schedule_was_made_of(best):
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    schedule = merged_schedule(best)
    lookup = build_dynamic_sd_schedule_lookup([list(entry) for entry in schedule], 600, 15)
    levels = sorted(best)
    for requests in range(1, 601):
        measured_at = next((level for level in levels if level >= requests), levels[-1])
        assert lookup[requests] == best[measured_at] == k_at(schedule, requests)


@settings(deadline=None)
@given(BEST)
def test_neighbours_of_one_length_are_one_entry(best):
    schedule = merged_schedule(best)
    assert schedule[0][0] == 1
    assert all(a[2] != b[2] and a[1] + 1 == b[0] for a, b in zip(schedule, schedule[1:], strict=False))


def test_k_falls_with_the_load():
    made = MadeUp()
    best = best_by_requests(surface(made), made.lengths, made.requests)
    assert best == {1: 4, 4: 1, 16: 0}
    assert best_fixed(surface(made), [1, 2, 4]) in (1, 2)


def test_one_percent_is_no_reason_for_another_length():
    """K=2 and K=4 alike within noise: the length of the level before stays."""
    made = MadeUp(
        step_s=lambda load, k: 0.01 if k in (0, 2) else 0.01 * 2.7731 / 2.19 * (0.995 if k == 4 else 2),
        rate=0.7, own_noise=0.0, requests=(1, 2, 4, 8),
    )  # fmt: skip
    assert len(set(best_by_requests(surface(made), made.lengths, made.requests).values())) == 1


def test_what_is_worth_a_closing_round():
    wanted = MadeUp().settings()
    names = [one.name for one in worth_serving(wanted, surface(MadeUp()))]
    assert names == ["fixed", "schedule"]
    asked = worth_serving(wanted.model_copy(update={"adaptive": True}), surface(MadeUp()))
    assert [one.name for one in asked] == ["fixed", "schedule", "adaptive"]
    flat = MadeUp(step_s=lambda load, k: 0.01 + 0.0001 * k)
    assert worth_serving(flat.settings(), surface(flat)) == [ServedConfig(name="fixed", k=4)]
    useless = MadeUp(step_s=lambda load, k: 0.01 * (1 + 3 * k))
    assert worth_serving(useless.settings(), surface(useless)) == []


def test_the_one_that_gains_most_is_printed():
    made = MadeUp()
    wanted = made.settings()
    gains = measured(wanted, fixed={1: 1.5, 4: 1.3, 16: 1.1}, schedule={1: 1.8, 4: 1.3, 16: 1.2})
    choice = choose_config(wanted, gains, surface(made))
    assert (choice.served, choice.slower, choice.undecided, choice.exit_code) == (OTHER, (), (), 0)


def test_being_slower_nowhere_comes_first():
    made = MadeUp()
    wanted = made.settings()
    gains = measured(wanted, fixed={1: 3.0, 4: 2.0, 16: 0.9}, schedule={1: 1.2, 4: 1.1, 16: 1.0})
    assert choose_config(wanted, gains, surface(made)).served == OTHER


def test_slower_somewhere_is_said_with_a_length_of_zero_where_it_helps():
    made = MadeUp()
    wanted = made.settings()
    gains = measured(wanted, fixed={1: 1.5, 4: 1.3, 16: 0.5})
    choice = choose_config(wanted, gains, surface(made))
    assert choice.exit_code == 1
    assert set(choice.slower) == {ServedLoad(requests=16, context=context) for context in (64, 512)}
    assert choice.with_zero == ((1, 4, 2), (5, 16, 0))
    gains = measured(wanted, fixed={1: 1.5, 4: 1.3, 16: 0.99})  # an awake drafter costs more
    assert choose_config(wanted, gains, surface(made)).with_zero == ()


@pytest.mark.parametrize("high", [0.999, 1.0])
def test_slower_is_the_whole_interval(high):
    made = MadeUp(requests=(1, 4), contexts=(64,))
    one, four = (ServedLoad(requests=requests, context=64) for requests in (1, 4))
    gains = {(FIXED, one): median_interval([0.9, high]), (FIXED, four): median_interval([1.1, 1.2])}
    choice = choose_config(made.settings(), gains, surface(made))
    assert (choice.slower, choice.undecided) == (((one,), ()) if high < 1 else ((), (one,)))
    assert choice.exit_code == (1 if high < 1 else 2)


@pytest.mark.parametrize(
    ("gains", "printed"),
    [
        ({"fixed": {1: 0.9, 4: 0.8, 16: 0.5}, "schedule": {1: 0.99, 4: 0.98, 16: 0.9}}, None),
        ({"fixed": {1: 1.1, 4: 0.8, 16: 0.5}, "schedule": {1: 0.99, 4: 0.98, 16: 0.9}}, FIXED),
        ({"fixed": {1: 1.2, 4: 0.9, 16: 0.9}}, FIXED),
    ],
)
def test_no_draft_where_every_config_loses_at_every_load(gains, printed):
    """A gain at one load is kept, and said to be slower elsewhere."""
    made = MadeUp()
    choice = choose_config(made.settings(), measured(made.settings(), **gains), surface(made))
    assert (choice.served == NONE) is (printed is None)
    assert choice.exit_code == (printed is not None)
    assert printed is not None or (choice.slower, choice.with_zero) == ((), ())


def test_no_length_pays():
    made = MadeUp()
    choice = choose_config(made.settings(), {}, surface(made))
    assert (choice.served, choice.exit_code) == (NONE, 0)
