"""From step times and acceptance to the surface, its rates and the predicted gain."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.measure.tune.made_up import MadeUp, memory_bound
from vllm_eagle_ext.measure.tune.order import loads, swept
from vllm_eagle_ext.measure.tune.results import NONE, ServedConfig, ServedLoad
from vllm_eagle_ext.measure.tune.surface import (
    acceptance_lengths,
    expected_length,
    gains_of,
    mean_gain,
    rate_of,
    rates_by_position,
    surface_of,
)

RATES = st.floats(0, 1)
KS = st.integers(1, 16)


def swept_cells(made):
    return made.cells("sweep", swept(made.settings()))


def test_the_surface_is_the_ratio_of_step_times():
    """A machine that is up to 30 % slower from turn to turn moves both of a ratio."""
    made = MadeUp()
    surface = surface_of(swept_cells(made))
    assert set(surface) == {(load, k) for load in loads(made.settings()) for k in made.lengths}
    for (load, k), point in surface.items():
        awake = made.awake_s if not k else 0
        ratio = (memory_bound(load, k) + awake) / memory_bound(load, 0)
        assert point.needed.median == pytest.approx(ratio, rel=0.02)
        assert point.needed.low <= point.needed.median <= point.needed.high
        assert point.length == pytest.approx(expected_length(made.rate, k), rel=1e-3)
        assert point.gain == pytest.approx(point.length / point.needed.median)
        if point.needed_rate is None:
            assert point.needed.median > k + 1
        else:
            assert expected_length(point.needed_rate, k) == pytest.approx(point.needed.median) or not k


def test_times_alone_give_the_surface():
    surface = surface_of(swept_cells(MadeUp()), with_lengths=False)
    assert surface
    assert all(point.length is None and point.gain is None for point in surface.values())


def test_nothing_is_said_of_a_load_without_a_step_time_without_a_draft():
    made = MadeUp()
    busiest = ServedLoad(requests=16, context=512)
    cells = [c for c in swept_cells(made) if (c.served, c.load) != (NONE, busiest)]
    assert {load for load, _ in surface_of(cells)} == set(loads(made.settings())) - {busiest}


def test_lengths_are_pooled_over_requests_and_not_over_contexts():
    made = MadeUp()
    cells = [
        c.model_copy(update={"tokens": c.tokens // 2}) if c.load.context == 512 else c
        for c in swept_cells(made)
    ]
    lengths = acceptance_lengths(cells)
    assert lengths[4, 64] == pytest.approx(expected_length(made.rate, 4), rel=1e-3)
    assert lengths[4, 512] == pytest.approx(expected_length(made.rate, 4) / 2, rel=1e-3)


@settings(deadline=None)
@given(RATES, KS)
def test_a_length_and_its_rate(rate, k):
    assert rate_of(expected_length(rate, k), k) == pytest.approx(rate, abs=1e-6)


@settings(deadline=None)
@given(RATES, KS)
def test_the_expected_length_is_leviathans(rate, k):
    length = expected_length(rate, k)
    assert 1 <= length <= k + 1
    if rate < 0.99:
        assert length == pytest.approx((1 - rate ** (k + 1)) / (1 - rate))


@settings(deadline=None)
@given(st.floats(1, 20), KS)
def test_a_length_that_k_tokens_do_not_reach_has_no_rate(length, k):
    assert (rate_of(length, k) is None) == (length > k + 1)


def test_rates_by_position():
    made = MadeUp()
    rates = rates_by_position(swept_cells(made), 4)
    assert rates == pytest.approx([made.rate**j for j in range(1, 5)], rel=1e-2)
    assert rates_by_position([], 4) == []


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 10), min_size=1))
def test_the_mean_of_gains_is_geometric(gains):
    assert mean_gain(gains) == pytest.approx(math.prod(gains) ** (1 / len(gains)))
    assert min(gains) * (1 - 1e-9) <= mean_gain(gains) <= max(gains) * (1 + 1e-9)


def test_gains_are_those_of_the_same_round():
    made = MadeUp(noise=2.0, own_noise=0.0)
    served = ServedConfig(name="fixed", k=2)
    for (one, load), gain in gains_of(made.cells("closing", [NONE, served])).items():
        assert one == served
        expected = expected_length(made.rate, 2) * memory_bound(load, 0) / memory_bound(load, 2)
        assert gain.low == pytest.approx(gain.high)
        assert gain.median == pytest.approx(expected, rel=1e-3)
