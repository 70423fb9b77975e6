"""What `make demo` says of its passes."""

from __future__ import annotations

import pytest

from examples.demo.report import Row, over_the_passes
from vllm_eagle_ext.measure.engine.load import Answer, Measured


def rows(plain, drafted):
    return [Row("no draft", plain, 100), Row("native", drafted, 100)]


def test_passes_that_agree_are_trusted():
    lines = list(over_the_passes(rows([1.6, 1.5, 1.7], [1.0, 1.0, 1.0]), 0.2, 2))
    assert lines == ["native: 1.60x, 1.50x to 1.70x over 3 passes."]


@pytest.mark.parametrize(
    ("plain", "shown"),
    [([0.9, 1.1, 0.96], "0.96x, 0.90x to 1.10x"), ([1.1, 1.6, 1.3], "1.30x, 1.10x to 1.60x")],
)
def test_a_spread_wider_than_the_gain_is_not_trusted(plain, shown):
    first, second = over_the_passes(rows(plain, [1.0, 1.0, 1.0]), 0.2, 2)
    assert shown in first
    assert "This machine was busy" in second
    assert "between the passes of native lies" in second
    assert "Do not trust" in second


def test_a_clear_slowdown_is_trusted():
    assert len(list(over_the_passes(rows([0.6, 0.62, 0.61], [1.0, 1.0, 1.0]), 0.2, 2))) == 1


def test_other_work_is_said_even_where_the_passes_agree():
    *_, last = over_the_passes(rows([1.6, 1.6], [1.0, 1.0]), 1.1, 2)
    assert last.startswith("Other work kept 1.1 of 2 cores busy")


def test_a_row_counts_one_pass_and_times_each():
    row = Row("native")
    for number in range(2):
        for histogram in ([1, 0, 2], [0, 3]):  # steps by how many drafts they accepted
            answer = Answer(4, [5] * 6, [6], 0.1, 0.1, histogram=histogram)
            row.add(number, Measured(1.0 + number, [answer]))
    assert row.seconds == [2.0, 4.0]
    assert (row.tokens, row.drafts) == (12, 6)
    assert row.accepted == [5, 2]
    assert row.tokens_per_second == 4.0
