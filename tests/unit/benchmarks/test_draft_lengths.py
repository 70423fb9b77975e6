"""What `python -m benchmarks.draft_lengths` makes of its cells: ratios, goals, lost time, the page."""

from __future__ import annotations

import pytest

from benchmarks.draft_lengths.__main__ import read_options
from benchmarks.draft_lengths.lengths_page import (
    PAGE,
    TEMPLATE,
    part_of,
    picture_file,
    result_file,
    write_part,
)
from benchmarks.draft_lengths.lengths_result import AUTO, LengthsResult, LengthSteps
from benchmarks.draft_lengths.load_summary import (
    accepted_tokens,
    best_of,
    goals_of,
    rates_of,
    summary_of,
)
from benchmarks.draft_lengths.lost_time import BEST, OTHERS, PROBES, lost_time_of
from benchmarks.draft_lengths.tiny_pairs import MIXES, PAIRS
from tests.unit.benchmarks.made_up_lengths import (
    AUTO_OVER_BEST,
    FULL,
    MANY,
    ONE,
    OVER_NONE,
    RAMP,
    SHORT,
    ZERO,
    cell,
    cells_of,
    result,
    result_of,
    settings,
)
from vllm_eagle_ext.measure.tune.results import NONE


class TestRatios:
    def test_are_those_of_a_start(self):
        found = summary_of(result(), ONE, "cpu")
        assert set(found.best.values()) == {FULL}
        over = {one: found.over_none[one].median for one in OVER_NONE}
        assert over == pytest.approx(OVER_NONE)
        ratio = found.auto_over_best
        assert (ratio.low, ratio.median, ratio.high) == pytest.approx(AUTO_OVER_BEST)
        assert found.auto_length == 2.5

    def test_times_are_told_at_the_usual_speed(self):
        """That of the second start, in which 100 tokens take twice as long as in the first."""
        found = summary_of(result(), ONE, "cpu").rates[NONE]
        assert (found.low, found.median, found.high) == pytest.approx((5, 5, 5))
        assert summary_of(result(), ONE, "wall").rates[NONE].median == pytest.approx(2.5)

    @pytest.mark.parametrize(
        ("starts", "coverage", "low"),
        [(2, 0.5, 1.0), (5, 0.9375, 1.0), (6, 0.96875, 1.0), (9, 0.9609375, 1.01)],
    )
    def test_a_start_is_one_sample(self, starts, coverage, low):
        """A second round makes its start's ratio another one, and no further ratio.

        Up to 8 starts the interval is the range; of 9 the lowest and highest are left out.
        """
        over_best = [1 + 0.01 * start for start in range(starts)]
        own = result(over_best=over_best)
        found = summary_of(own, ONE, "cpu").auto_over_best
        assert (found.pairs, found.coverage) == (starts, coverage)
        assert found.low == pytest.approx(low)
        assert f"median over {starts} starts and cover it with {coverage:.1%}" in part_of(own)

        # As many tokens again, in no time: all rates of "auto" are doubled.
        second = [cell(AUTO, ONE, start, 1e9, round=1) for start in range(starts)]
        doubled = own.model_copy(update={"cells": own.cells + second})
        found = summary_of(doubled, ONE, "cpu").auto_over_best
        assert (found.pairs, found.coverage) == (starts, coverage)
        assert found.low == pytest.approx(2 * low, rel=1e-6)

    def test_the_best_k_is_chosen_by_the_other_starts(self):
        """K=1 is worse than K=4 but for one lucky start, which makes it the best of all three."""
        lucky = {ZERO: 0.5, SHORT: 1.3, FULL: 1.0}
        usual = {ZERO: 0.5, SHORT: 0.9, FULL: 1.0}
        cells = cells_of(ONE, [lucky, usual, usual], [1.0, 1.0, 1.0])
        assert best_of([ZERO, SHORT, FULL], rates_of(cells, "cpu", piece_s=0.001)) == SHORT
        found = summary_of(result_of(settings(), cells), ONE, "cpu")
        assert found.best == {0: FULL, 1: SHORT, 2: SHORT}
        ratio = found.best_over_none
        assert (ratio.low, ratio.median, ratio.high) == pytest.approx((0.9, 0.9, 1.0))
        ratio = found.auto_over_best
        assert (ratio.low, ratio.median, ratio.high) == pytest.approx((1.0, 1 / 0.9, 1 / 0.9))

    def test_one_k_in_two_engines(self):
        """Neither the rates of K nor the best K know of the second one."""
        cells = cells_of(ONE, OVER_NONE, [1.6, 1.6, 1.6], again=0.8)
        cells[4] = cell(SHORT, ONE, 0, OVER_NONE[SHORT] * 0.9, again=True)  # another K in this start
        assert [one.again for one in cells].count(True) == 4
        del cells[5]
        found = summary_of(result_of(settings(), cells), ONE, "cpu")
        ratio = found.again
        assert (ratio.low, ratio.median, ratio.high) == pytest.approx((0.8, 0.8, 0.9))
        assert found.over_none[FULL].median == pytest.approx(1.6)


class TestGoals:
    @pytest.mark.parametrize(
        ("pair", "auto", "held"),
        [
            ("dense", (0.98, 0.99, 1.0), [True, True, True]),
            ("dense", (0.96, 0.99, 1.0), [False, True, False]),
            ("dense", (0.6, 0.99, 0.99), [False, False, False]),
            ("hybrid", (0.6, 0.99, 1.0), [False, True, False]),  # .96 of no draft
            ("hybrid", (0.59, 0.99, 1.0), [False, False, False]),  # .944
        ],
    )
    def test_greedy_texts(self, pair, auto, held):
        """The largest K is the best one here; "auto" must reach it at one request, too."""
        found = result(pair, auto)
        floor, *one = goals_of(found.settings, summary_of(found, ONE, "cpu"))
        assert floor.holds
        assert [goal.holds for goal in one] == held
        for load in (MANY, RAMP):
            _, *goals = goals_of(found.settings, summary_of(found, load, "cpu"))
            assert [goal.holds for goal in goals] == held[:2]

    def test_sampled_texts_have_no_speed_up_of_today(self):
        found = result(sampled=0.5)
        assert len(list(goals_of(found.settings, summary_of(found, ONE, "cpu")))) == 3

    def test_what_a_perfect_controller_could_show(self):
        found = result_of(settings(), cells_of(ONE, OVER_NONE, [1.6, 1.6, 1.6], again=0.96))
        floor = next(goals_of(found.settings, summary_of(found, ONE, "cpu")))
        assert (floor.judged, floor.holds) == (pytest.approx(0.96), False)


class TestLostTime:
    def found(self, slower: float):
        """The best K makes 16 tokens per second; of "auto", K=4 does, too, and the rest is lost."""
        cells = cells_of(ONE, OVER_NONE, [1.0, 1.0])
        by_length = [
            LengthSteps(k=4, is_probe=False, steps=12, cpu_s=4.0 * slower, wall_s=1.0, tokens=64),
            LengthSteps(k=0, is_probe=False, steps=3, cpu_s=3.0 * slower, wall_s=1.0, tokens=16),
            LengthSteps(k=4, is_probe=True, steps=4, cpu_s=1.5 * slower, wall_s=1.0, tokens=16),
            LengthSteps(k=1, is_probe=True, steps=1, cpu_s=1.5 * slower, wall_s=1.0, tokens=4),
        ]
        mine = {"by_length": by_length, "steps": 20, "cpu_s": 10.0 * slower, "piece_s": 0.001 * slower}
        cells = [
            one.model_copy(update=mine if one.served == AUTO else {"piece_s": 0.001, "cpu_s": 10 / rate})
            for one, rate in zip(cells, [1.0, *OVER_NONE.values(), 1.0, 1.6] * 2, strict=True)
        ]
        return lost_time_of(result_of(settings(starts=2), cells), ONE)

    @pytest.mark.parametrize("slower", [1.0, 3.0])
    def test_is_split(self, slower):
        """At any speed of the machine while "auto" ran."""
        found = self.found(slower)
        by_step = {kind: lost * 20 for kind, lost in found.lost_s.items()}
        assert by_step == pytest.approx({BEST: 0.0, OTHERS: 3 - 1, PROBES: 3 - 20 / 16})
        assert found.time_share == pytest.approx({0: 0.3, 1: 0.0, 4: 0.4})
        assert found.probe_share == pytest.approx(0.3)
        assert found.step_s == pytest.approx({"no draft": 10 / 40, "K=0": 10 / 0.9 / 40, "auto": 0.5})

    def test_together_it_is_what_auto_lost(self):
        """100 tokens in 10 seconds, for which the best K needs 6.25."""
        assert sum(self.found(1.0).lost_s.values()) * 20 == pytest.approx(10 - 100 / 16)


def test_accepted_tokens_of_a_draft():
    assert accepted_tokens(result()) == (3.0, 0.0)
    greedy = [one.model_copy(update={"sampled": (0, 0)}) for one in result().cells]
    assert accepted_tokens(result_of(settings(), greedy)) == (3.0, None)


def test_cells_beside_other_work_are_counted():
    found = result()
    busy = [one.model_copy(update={"other_cores": cores}) for one, cores in zip(
        found.cells, (0.4, 0.6, 2.0), strict=False)]  # fmt: skip
    found = found.model_copy(update={"cells": [*busy, *found.cells[3:]]})
    assert found.disturbed == 2
    assert f"Of {len(found.cells)} cells 2 were disturbed" in part_of(found)


def test_one_start_is_refused(capsys):
    """Nothing would be left to choose the best K by."""
    with pytest.raises(SystemExit):
        read_options(["--pair", "dense", "--starts", "1"])
    assert "at least 2" in capsys.readouterr().err
    assert read_options(["--pair", "dense", "--starts", "2"]).starts == 2


class TestThePage:
    def test_results_page_and_pictures(self, tmp_path):
        for pair in PAIRS:
            for sampled, mix in MIXES.items():
                found = result(pair, sampled=sampled)
                write_part(tmp_path, found)
                assert LengthsResult.read(tmp_path / result_file(pair, mix)) == found
        text = (tmp_path / PAGE).read_text()
        assert "Not measured." not in text
        for pair in PAIRS:
            for sampled, mix in MIXES.items():
                assert part_of(result(pair, sampled=sampled)) in text
                assert f"(images/{picture_file(pair, mix).name})" in text
                assert (tmp_path / picture_file(pair, mix)).read_bytes().startswith(b"\x89PNG")

    def test_a_line_of_each_table(self):
        text = part_of(result(over_best=(0.96, 1.0, 1.01)))
        assert "| 1 to 8 to 1, 64 | 5 | 4: 1.600 (1.600 to 1.600) |" in text
        assert (
            '| "auto" over the largest K, lower end | processor | 0.97 | 0 of 1 | 1, 64: 0.960 |' in text
        )
        assert "| one K in two engines, lower end | wall | 0.97 | 3 of 3 | - |" in text
        assert "| 1, 64 | 0.90 | 1.20 | 1.60 | 1.000 (1.000 to 1.000) |" in text
        # 40 steps in 10 s of no draft at half the speed; "auto" loses none at its best start but one.
        assert "| 1, 64 | 500.00 | 555.56 |" in text
        assert "| K=4 50%, probes 50% |" in text

    def test_a_part_alone_leaves_the_others(self, tmp_path):
        """What stands outside the markers is not written again."""
        parts = TEMPLATE.read_text().count("Not measured.")
        assert parts == len(PAIRS) * len(MIXES)
        write_part(tmp_path, result())
        page = tmp_path / PAGE
        assert page.read_text().count("Not measured.") == parts - 1
        page.write_text(page.read_text().replace("## How", "## Otherwise"))
        write_part(tmp_path, result("hybrid"))
        assert "## Otherwise" in page.read_text()
        assert page.read_text().count("Not measured.") == parts - 2
