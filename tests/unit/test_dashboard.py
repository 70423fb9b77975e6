"""The Grafana dashboard by itself; that a server exports what it asks for: tests/e2e/test_metrics.py."""

from __future__ import annotations

import re
from itertools import combinations

import pytest
from prometheus_client import REGISTRY

from tests.support import dashboard
from tests.support.engine import TINY
from vllm_eagle_ext import metrics, plugin

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


def test_the_draft_length_is_shown_by_what_is_exported_of_it(exported):
    """Metric and labels; a server without `draft_length: "auto"` has none of them."""
    asked: dict[str, set[str]] = {}
    for expression in dashboard.expressions(BOARD):
        parsed = dashboard.parse(expression)
        for metric, labels in parsed.labels.items():
            if metric in metrics.OF_DRAFT_LENGTH:
                asked.setdefault(metric, set()).update(labels)
                assert parsed.grouped <= exported[metric], expression
    assert set(asked) == set(exported) == set(metrics.OF_DRAFT_LENGTH)
    for metric, labels in asked.items():
        assert labels <= exported[metric], metric


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("K in force", [metrics.DRAFT_LENGTH, metrics.DRAFT_GAIN, metrics.DRAFT_UNTIMED]),
        (
            "Draft tokens per second",
            [metrics.DRAFTED_TOKENS, "vllm:spec_decode_num_draft_tokens_total",
             "vllm:spec_decode_num_accepted_tokens_total"],
        ),
        ("Steps by tokens drafted", [metrics.LENGTH_STEPS, metrics.LENGTH_STEPS]),
    ],
)  # fmt: skip
def test_panels_of_the_draft_length(words, shown):
    (panel,) = [panel for panel in PANELS if words in panel["title"]]
    found = [list(dashboard.parse(target["expr"]).labels) for target in panel["targets"]]
    assert found == [[metric] for metric in shown]
    assert 'draft_length: "auto"' in panel["description"]


def test_the_share_of_steps_without_drafts_is_of_all_steps():
    (panel,) = [panel for panel in PANELS if panel["title"] == "Steps by tokens drafted"]
    part, whole = panel["targets"][0]["expr"].split(" / ")
    assert part.replace(', num_draft_tokens="0"', "") == whole != part


@pytest.fixture
def exported(monkeypatch):
    """Metric -> labels, of an engine with `draft_length: "auto"` as vLLM's front end configures it."""
    from vllm.config import ParallelConfig
    from vllm.engine.arg_utils import EngineArgs

    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    plugin.register()
    engine_args = EngineArgs(
        model=str(TINY / "target"),
        speculative_config={
            "method": "eagle3", "model": str(TINY / "postnorm"), "num_speculative_tokens": 4,
        },
        additional_config={"eagle_ext": {"draft_length": "auto"}},
    )  # fmt: skip
    engine_args.create_speculative_config(engine_args.create_model_config(), ParallelConfig())
    yield {
        sample.name: set(sample.labels)
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name in metrics.OF_DRAFT_LENGTH
    }
    metrics.withdraw()


def test_the_parser_sees_what_is_wrong():
    asked = dashboard.parse('sum by (a, le) (rate(x:y_total{b="1", c=~"$d"}[5m])) / on (a) other + 2')
    assert asked.labels == {"x:y_total": {"b", "c"}}
    assert asked.grouped == {"a", "le"}
    assert asked.rest - dashboard.FUNCTIONS == {"other"}
