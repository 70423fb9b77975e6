"""From step times and acceptance to the surface, its rates and the predicted gain."""

from __future__ import annotations

import statistics

import pytest

from tests.unit.measure.bench.made_up import FAST, MadeUpTune, expected_length, load, memory_bound
from vllm_eagle_ext.measure.bench.results import PLAIN, Variant
from vllm_eagle_ext.measure.bench.runner import swept
from vllm_eagle_ext.measure.bench.summary import (
    gain_over_loads,
    surface_of,
)


def swept_cells(made):
    return made.cells("sweep", swept(made.settings()))


def test_the_surface_is_the_ratio_of_step_times():
    """A machine that is up to 30 % slower from turn to turn moves both of a ratio."""
    made = MadeUpTune()
    surface = surface_of(made.sweep())
    assert set(surface) == {(at, k) for at in made.settings().loads for k in made.ks}
    for (at, k), point in surface.items():
        awake = made.awake_s if not k else 0
        ratio = (memory_bound(at, k) + awake) / memory_bound(at, 0)
        assert point.needed.median == pytest.approx(ratio, rel=0.02)
        assert point.needed.low <= point.needed.median <= point.needed.high
        assert point.length == pytest.approx(expected_length(made.rate, k), rel=1e-3)
        assert point.gain == pytest.approx(point.length / point.needed.median)


def test_times_alone_give_the_surface():
    surface = surface_of(MadeUpTune(surface_only=True).sweep())
    assert surface
    assert all(point.length is None and point.gain is None for point in surface.values())


def test_nothing_is_said_of_a_load_without_a_step_time_without_a_draft():
    made = MadeUpTune()
    busiest = load(16, 512)
    cells = [c for c in swept_cells(made) if (c.variant, c.load) != (PLAIN, busiest)]
    surface = surface_of(made.report_of(cells))
    assert {at for at, _ in surface} == set(made.settings().loads) - {busiest}


def test_lengths_are_pooled_over_requests_and_not_over_contexts():
    made = MadeUpTune()
    cells = [
        c.model_copy(update={"accepted": [n // 2 for n in c.accepted]}) if c.load.context == 512 else c
        for c in swept_cells(made)
    ]
    surface = surface_of(made.report_of(cells))
    alone = expected_length(made.rate, 4) - 1
    for level in made.concurrency:
        assert surface[load(level, 64), 4].length == pytest.approx(1 + alone, rel=1e-3)
        assert surface[load(level, 512), 4].length == pytest.approx(1 + alone / 2, rel=1e-3)


def test_gains_are_those_of_the_same_round():
    made = MadeUpTune(noise=2.0, own_noise=0.0)
    served = Variant(kind="ours", draft=FAST, k=2)
    report = made.report_of(made.cells("closing", [PLAIN, served]))
    for row in report.rows:
        if row.variant == served:
            gain, at = row.speedup, row.load
            expected = expected_length(made.rate, 2) * memory_bound(at, 0) / memory_bound(at, 2)
            assert gain.low == pytest.approx(gain.high)
            assert gain.median == pytest.approx(expected, rel=1e-3)
    mean = gain_over_loads(report, served)
    gains = [row.speedup.median for row in report.rows if row.variant == served]
    assert (mean.pairs, mean.median) == (made.rounds, pytest.approx(statistics.geometric_mean(gains)))
