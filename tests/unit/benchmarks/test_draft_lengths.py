"""What `python -m benchmarks.draft_lengths` makes of its cells: ratios, goals, page and picture."""

from __future__ import annotations

import pytest

from benchmarks.draft_lengths.lengths_page import (
    PAGE,
    part_of,
    picture_file,
    result_file,
    write_page,
)
from benchmarks.draft_lengths.lengths_result import (
    AUTO,
    LengthsCell,
    LengthsResult,
    LengthsSettings,
    LoadShape,
)
from benchmarks.draft_lengths.load_summary import accepted_tokens, goals_of, summary_of
from benchmarks.draft_lengths.tiny_pairs import PAIRS, loads_of_cell, waves
from vllm_eagle_ext.measure.tune.results import NONE, ServedConfig

# Tokens per CPU-second over no draft, of each K and of "auto" by round.
OVER_NONE = {0: 0.9, 1: 1.2, 4: 1.6}
AUTO_OVER_BEST = (0.99, 1.0, 1.01)
ONE, MANY = LoadShape(requests=1, context=64), LoadShape(requests=8, context=64)
RAMP = LoadShape(requests=8, context=64, ramp=True)


def settings(pair: str) -> LengthsSettings:
    return LengthsSettings(
        pair=pair, target="t", draft="d", k=4, lengths=[0, 1, 4], eagle_ext={}, engine={}, prompts="p",
        prompt_tokens={64: 80.0}, requests=[1, 8], contexts=[64], rounds=3, starts=2, tokens=10, texts=8,
        first_steps=240,
    )  # fmt: skip


def cell(served: ServedConfig, load: LoadShape, number: int, rate: float, **more) -> LengthsCell:
    """100 tokens at this rate over 10 per second; greedy requests have 4 tokens of a step, others 1.

    In each round all is twice as slow as in the one before, the piece of reference work, too.
    """
    slower = 2.0**number
    values = {
        "cpu_s": 10 / rate * slower, "wall_s": 20 / rate * slower, "piece_s": 0.001 * slower,
        "steps": 40, "greedy": (80, 20), "sampled": (20, 20), "decoded": 50, "drafted": 125,
    }  # fmt: skip
    return LengthsCell(served=served, load=load, round=number, **(values | more))


def result(pair: str = "dense", auto: tuple[float, ...] = AUTO_OVER_BEST) -> LengthsResult:
    own = settings(pair)
    cells = []
    for load in own.loads:
        for number, over_best in enumerate(auto):
            cells.append(cell(NONE, load, number, 1.0))
            cells += [cell(k, load, number, OVER_NONE[k.k]) for k in own.held]
            cells.append(cell(AUTO, load, number, 1.6 * over_best))
        cells.append(cell(AUTO, load, 0, 0.8, is_first=True))
    return LengthsResult(
        command="python -m benchmarks.draft_lengths", started="2026-11-23T00:00:00+00:00", cores=2,
        machine={"processor": "a processor", "vllm": "0.32.0", "torch": "2.9"}, load_average=0.1,
        settings=own, cells=cells,
    )  # fmt: skip


def test_ratios_are_those_of_a_round():
    found = summary_of(result(), ONE, "cpu")
    assert found.best == ServedConfig(name="held", k=4)
    over = {one.k: ratio.median for one, ratio in found.over_none.items() if one.name == "held"}
    assert over == pytest.approx(OVER_NONE)
    ratio = found.auto_over_best
    assert (ratio.low, ratio.median, ratio.high) == pytest.approx(AUTO_OVER_BEST)
    assert ratio.pairs == 3
    assert found.first_over_best == pytest.approx(0.5)
    assert found.auto_length == 2.5


def test_times_are_told_at_the_usual_speed():
    """That of the second round, in which 100 tokens take twice as long as in the first."""
    found = summary_of(result(), ONE, "cpu").rates[NONE]
    assert (found.low, found.median, found.high) == pytest.approx((5, 5, 5))
    assert summary_of(result(), ONE, "wall").rates[NONE].median == pytest.approx(2.5)


def test_all_engines_are_started_before_these_rounds():
    own = settings("dense")
    assert own.fresh_rounds == {0, 1}
    assert own.model_copy(update={"rounds": 6}).fresh_rounds == {0, 3}
    assert own.model_copy(update={"starts": 1}).fresh_rounds == {0}


@pytest.mark.parametrize(
    ("pair", "auto", "held"),
    [
        ("dense", (0.98, 0.99, 1.0), [True, True, True]),
        ("dense", (0.96, 0.99, 1.0), [False, True, True]),
        ("dense", (0.6, 0.99, 0.99), [False, False, False]),
        ("hybrid", (0.6, 0.99, 1.0), [False, True, True]),  # .96 of no draft
        ("hybrid", (0.59, 0.99, 1.0), [False, False, True]),  # .944
    ],
)
def test_goals(pair, auto, held):
    """The largest K is the best one here; "auto" must reach it at one request, noise aside."""
    found = result(pair, auto)
    one = list(goals_of(pair, summary_of(found, ONE, "cpu")))
    assert [goal.holds for goal in one] == held
    for load in (MANY, RAMP):
        assert [goal.holds for goal in goals_of(pair, summary_of(found, load, "cpu"))] == held[:2]


def test_accepted_tokens_of_a_draft():
    assert accepted_tokens(result()) == (3.0, 0.0)


def test_cells_beside_other_work_are_counted():
    found = result()
    busy = [cell.model_copy(update={"other_cores": cores}) for cell, cores in zip(
        found.cells, (0.4, 0.6, 2.0), strict=False)]  # fmt: skip
    found = found.model_copy(update={"cells": [*busy, *found.cells[3:]]})
    assert found.disturbed == 2
    assert f"Of {len(found.cells)} cells 2 were disturbed" in part_of(found)


def test_phases_of_a_ramp():
    assert LoadShape(requests=32, context=64, ramp=True).phases == [1, 2, 4, 8, 16, 32, 16, 8, 4, 2, 1]
    assert LoadShape(requests=6, context=64, ramp=True).phases == [1, 2, 4, 6, 4, 2, 1]
    assert LoadShape(requests=1, context=64, ramp=True).phases == [1]


@pytest.mark.parametrize("requests", [1, 4, 32])
def test_texts_of_a_cell(requests):
    """Every second one is sampled, at one request too, and the next round has others."""
    load, prompts = LoadShape(requests=requests, context=64), [[n] for n in range(120)]
    rounds = [loads_of_cell(load, n, prompts, 4, tokens=48, texts=8) for n in range(2)]
    for found in rounds:
        assert len(found) == waves(load, 8) == max(1, 8 // requests)
        temperatures = [one for wave in found for one in wave.temperatures]
        assert temperatures == [0.0, 1.0] * (len(temperatures) // 2)
        assert all(len(wave.prompts) == requests == max(wave.phases) for wave in found)
    first, second = ({p[0] for wave in found for p in wave.prompts} for found in rounds)
    assert not first & second


class TestThePage:
    def test_results_page_and_pictures(self, tmp_path):
        for pair in PAIRS:
            result(pair).save(tmp_path / result_file(pair))
            assert LengthsResult.read(tmp_path / result_file(pair)) == result(pair)
        write_page(tmp_path)
        text = (tmp_path / PAGE).read_text()
        assert "Not measured." not in text
        for pair in PAIRS:
            assert part_of(result(pair)) in text
            assert f"(images/{picture_file(pair).name})" in text
            assert (tmp_path / picture_file(pair)).read_bytes().startswith(b"\x89PNG")
        assert "| 1 to 8 to 1, 64 | 5 | 4: 1.600 (1.600 to 1.600) |" in text
        assert "1.000 (0.990 to 1.010) | 2.50 | 0.50 |" in text

    def test_a_pair_alone_leaves_the_others_part(self, tmp_path):
        """What stands outside the markers is not written again."""
        result().save(tmp_path / result_file("dense"))
        write_page(tmp_path)
        page = tmp_path / PAGE
        assert page.read_text().count("Not measured.") == 1
        page.write_text(page.read_text().replace("## How", "## Otherwise"))
        result("hybrid").save(tmp_path / result_file("hybrid"))
        write_page(tmp_path)
        assert "## Otherwise" in page.read_text()
        assert "Not measured." not in page.read_text()
