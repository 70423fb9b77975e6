from __future__ import annotations

import numpy as np
import pytest

from vllm_eagle_ext.measure.bench.results import COVERAGE, median_interval, paired


@pytest.mark.parametrize(
    ("n", "low", "high", "coverage"),
    [
        pytest.param(1, 1, 1, 0.0, id="one says nothing"),
        pytest.param(3, 1, 3, 0.75, id="range of three"),
        pytest.param(5, 1, 5, 0.9375, id="still too few"),
        pytest.param(6, 1, 6, 0.96875, id="first that suffices"),
        pytest.param(9, 2, 8, 0.9609375, id="no longer the range"),
        pytest.param(20, 6, 15, 0.9586105, id="as in tables of the sign test"),
    ],
)
def test_order_statistics(n, low, high, coverage):
    ci = median_interval([float(value) for value in range(n, 0, -1)])
    assert (ci.low, ci.high, ci.pairs) == (low, high, n)
    assert ci.coverage == pytest.approx(coverage)
    assert ci.median == (n + 1) / 2
    assert ci.is_interval == (n > 1)


@pytest.mark.parametrize("n", [3, 6, 15])
def test_coverage_is_what_it_says(n):
    """The distribution is far from normal; its mean would not be covered so."""
    draws = np.random.default_rng(0).exponential(size=(4000, n))
    cis = [median_interval(list(row)) for row in draws]
    held = np.mean([ci.low <= np.log(2) <= ci.high for ci in cis])
    assert held == pytest.approx(cis[0].coverage, abs=0.02)
    assert cis[0].coverage >= COVERAGE or n < 6


def test_pairs_cancel_a_drifting_machine():
    ours = {0: 100.0, 1: 50.0, 2: 200.0}
    base = {0: 80.0, 1: 40.0, 2: 160.0}
    ci = paired(ours, base)
    assert ci.median == ci.low == ci.high == pytest.approx(1.25)
    swapped = paired(ours, {0: 40.0, 1: 160.0, 2: 80.0})
    assert swapped.high > 2 * swapped.low  # without the pairing it would not


def test_repeats_of_one_side_alone_are_left_out():
    assert paired({0: 2.0, 2: 9.0}, {0: 1.0, 1: 1.0}).pairs == 1
    assert paired({0: 2.0}, {1: 1.0}) is None


def test_overlapping_intervals():
    first, touching, apart = (median_interval(values) for values in ((1, 2), (2, 3), (2.1, 3)))
    assert first.overlaps(touching)
    assert touching.overlaps(first)
    assert not first.overlaps(apart)
