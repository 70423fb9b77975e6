"""Sampled texts follow the target's distribution, from every draft and way of drafting.

All continuations of a prompt are listed with their probabilities, and samples compared by chi-square,
per seed and with all seeds together. A right engine fails a draw with a chance of less than 0.0002:
ALARM for the joint sample, and ALARM among the seeds.
"""

from __future__ import annotations

from itertools import chain

import pytest

from tests.support.sampling import Draw, SampledEngine, distribution, draw_all, fit

pytestmark = [pytest.mark.e2e, pytest.mark.full]

SEEDS, SIZE = 5, 1000
ALARM = 1e-4

ONE = Draw("T=1")
SETTINGS = [
    ONE,
    Draw("T=0.6", temperature=0.6),
    Draw("top-k 3", top_k=3),
    Draw("T=1.3, top-k 4, top-p 0.8", temperature=1.3, top_k=4, top_p=0.8),
]
FAULTS = [Draw(name, broken=name) for name in ("every draft accepted", "residual ignored")]
# 500 requests begin, and end as their drafts are accepted.
SCHEDULE = [[1, 200, 0], [201, 499, 1], [500, 500, 2]]
ENGINES = [
    SampledEngine("post-norm, greedy drafts", "post-norm", draws=[ONE, SETTINGS[3]]),
    SampledEngine("post-norm, sampled drafts", "post-norm", "probabilistic", [*SETTINGS, *FAULTS]),
    SampledEngine("DFlash, sampled drafts", "dflash", "probabilistic", [ONE]),
    SampledEngine("drafts of changing length", "post-norm", "probabilistic", [ONE], SCHEDULE),
]
MORE = [
    SampledEngine("gated, greedy drafts", "gated", draws=SETTINGS),
    SampledEngine("gated, sampled drafts", "gated", "probabilistic", SETTINGS),
    SampledEngine("post-norm, greedy drafts", "post-norm", draws=SETTINGS),
    SampledEngine("DFlash, greedy drafts", "dflash", draws=SETTINGS),
    SampledEngine("DFlash, sampled drafts", "dflash", "probabilistic", SETTINGS),
    SampledEngine("no draft", None, draws=SETTINGS),
]


def right(engines):
    return [(engine, draw) for engine in engines for draw in engine.draws if draw not in FAULTS]


def name_of(value):
    return value.name


@pytest.fixture(scope="module")
def v1(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sampling")
    return folder / "target", draw_all(folder, ENGINES, SEEDS, SIZE)


@pytest.fixture(scope="module")
def v1_more(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sampling")
    return folder / "target", draw_all(folder, MORE, SEEDS, 5 * SIZE)


@pytest.fixture(scope="module")
def v2(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sampling")
    return folder / "target", draw_all(folder, ENGINES_ON_V2, SEEDS, 200, runner="v2")


def fits(drawn, engine, draw, against=None):
    """Per seed, and of all samples together."""
    target, results = drawn
    chances = distribution(target, against or draw)
    samples = results[engine.name]["samples"][draw.name]
    return [fit(sample, chances) for sample in samples], fit(list(chain(*samples)), chances)


def report(name, seeds, joint):
    each = ", ".join(f"{s.p:.3g}" for s in seeds)
    print(f"\n{name}: p {each}; joint {joint.p:.3g}, {joint.freedom + 1} cells")


def assert_fits(drawn, engine, draw):
    seeds, joint = fits(drawn, engine, draw)
    report(f"{engine.name}, {draw.name}", seeds, joint)
    assert joint.p > ALARM
    assert min(s.p for s in seeds) > ALARM / len(seeds)


@pytest.mark.parametrize(("engine", "draw"), right(ENGINES), ids=name_of)
def test_samples_follow_the_target(v1, engine, draw):
    assert_fits(v1, engine, draw)


@pytest.mark.parametrize("engine", ENGINES, ids=name_of)
def test_drafts_are_neither_all_right_nor_all_wrong(v1, engine):
    result = v1[1][engine.name]
    shares = [count / result["drafts"] for count in result["accepted"]]
    print(f"\n{engine.name}: {shares}")
    assert 0.02 < shares[1] < shares[0] < 0.98


def test_the_drafts_of_a_schedule_have_several_lengths(v1):
    result = v1[1][ENGINES[-1].name]
    print(f"\n{result['drafted']} tokens in {result['drafts']} drafts")
    assert result["drafts"] < result["drafted"] < 2 * result["drafts"]


@pytest.mark.parametrize("draw", FAULTS, ids=name_of)
def test_a_broken_rejection_is_seen(v1, draw):
    seeds, joint = fits(v1, ENGINES[1], draw)
    report(draw.name, seeds, joint)
    assert max(s.p for s in seeds) < 1e-9


def test_another_temperature_is_seen(v1):
    """A right sample against the distribution at 1.5 instead of 1."""
    seeds, joint = fits(v1, ENGINES[1], ONE, against=Draw("", temperature=1.5))
    report("T=1 against T=1.5", seeds, joint)
    assert joint.p < 1e-9


@pytest.mark.long
@pytest.mark.parametrize(("engine", "draw"), right(MORE), ids=name_of)
def test_larger_samples(v1_more, engine, draw):
    assert_fits(v1_more, engine, draw)


# Kernels of V2 for sampled drafts, top-k and top-p do not run under Triton's interpreter.
ENGINES_ON_V2 = [
    SampledEngine("post-norm, greedy drafts", "post-norm"),
    SampledEngine("DFlash, greedy drafts", "dflash"),
]


@pytest.mark.long
@pytest.mark.v2
@pytest.mark.parametrize(("engine", "draw"), right(ENGINES_ON_V2), ids=name_of)
def test_on_v2(v2, engine, draw):
    assert_fits(v2, engine, draw)
