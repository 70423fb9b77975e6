"""The Grafana dashboard by itself; that a server exports what it asks for: tests/e2e/test_metrics.py."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from tests.support import dashboard

BOARD = dashboard.load()
PANELS = BOARD["panels"]


def test_panels_have_ids_of_their_own_and_do_not_overlap():
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids) >= 12
    places = [panel["gridPos"] for panel in PANELS]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for a, b in combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]


def test_each_panel_asks_the_chosen_source_for_the_chosen_model():
    for panel in PANELS:
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) >= 1
        for source in (panel["datasource"], *(target["datasource"] for target in panel["targets"])):
            assert source == {"type": "prometheus", "uid": "${datasource}"}
    for expression in dashboard.expressions(BOARD):
        selectors = dashboard.parse(expression).labels
        assert selectors
        assert all("model_name" in labels for labels in selectors.values()), expression


def test_variables_are_defined():
    defined = {variable["name"] for variable in BOARD["templating"]["list"]} | {"__rate_interval"}
    used = set(re.findall(r"\$\{?(\w+)", str(PANELS) + str(BOARD["templating"])))
    assert used - {"__all"} <= defined
    assert {"datasource", "model_name"} <= used


@pytest.mark.parametrize("expression", sorted(set(dashboard.expressions(BOARD))))
def test_expressions_are_understood_whole(expression):
    """So that no metric hides from the test against a server."""
    assert dashboard.parse(expression).rest <= dashboard.FUNCTIONS
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing)


def test_the_parser_sees_what_is_wrong():
    asked = dashboard.parse('sum by (a, le) (rate(x:y_total{b="1", c=~"$d"}[5m])) / on (a) other + 2')
    assert asked.labels == {"x:y_total": {"b", "c"}}
    assert asked.grouped == {"a", "le"}
    assert asked.rest - dashboard.FUNCTIONS == {"other"}
