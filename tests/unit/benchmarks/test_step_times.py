"""The table of step times: its cells, and that the page has that of the committed result."""

from __future__ import annotations

import pytest
import torch

from benchmarks import step_times
from benchmarks.step_times import KS, order, ratios, table


def visit(number, kind, k, *seconds, context=200, requests=2):
    place = {"round": number, "context": context, "requests": requests, "kind": kind, "k": k}
    return place | {"cpu": list(seconds), "wall": [99.0]}


@pytest.fixture
def result():
    rounds = [visit(0, "none", 0, 0.1), visit(0, "none", 0, 0.3), visit(1, "none", 0, 0.4)]
    rounds += [visit(0, "ours", 1, 0.3, 0.2, 0.4), visit(1, "ours", 1, 0.8), visit(2, "ours", 1, 9.0)]
    return {"contexts": [200, 1500], "loads": [2, 9, 40], "visits": rounds}


def test_ratios_are_of_one_round(result):
    """Medians of a round's steps; a round without one of the two has none."""
    assert ratios(result, 200, 2, "ours", 1) == pytest.approx([1.5, 2.0])
    assert ratios(result, 200, 2, "stock", 1) == []


def test_a_cell_that_was_not_run_says_so(result):
    lines = table(result).splitlines()
    assert len(lines) == 3 + 2 * 3
    assert {line.count("|") for line in lines} == {lines[0].count("|")}
    row = [cell.strip() for cell in lines[3].split("|")[1:-1]]
    # At K=1 a step gives 1.73 tokens.
    assert row == ["200", "2 (0.1)", "300", "not run", "1.75/not run/not run/not run"]
    assert set(lines[-1].split("|")[3:-1]) == {" not run "}


def test_what_pays_is_bold(result):
    result["visits"][-2]["cpu"] = [0.4]
    assert "| **1.25**/not run" in table(result)
    result["visits"][-2]["cpu"] = [0.72]  # 1.8 in one round of two
    assert "| 1.65/not run" in table(result)


def test_stock_is_timed_next_to_ours():
    for number in (0, 1):
        visits = order(number)
        assert visits[0] == visits[-1] == ("none", 0)
        pairs = {frozenset(visits[i : i + 2]) for i in range(1, len(visits) - 1, 2)}
        assert pairs == {frozenset([("ours", k), ("stock", k)]) for k in KS}
    assert order(0) == order(1)[::-1]


def test_a_token_takes_keys_and_values_of_target_and_draft():
    layers = step_times.SHAPE.layers + 1
    assert step_times.token_bytes(torch.bfloat16) == 2 * layers * 8 * 128 * 2
