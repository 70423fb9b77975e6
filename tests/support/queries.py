"""What the Grafana dashboard and the alert rules ask Prometheus for: metrics and the labels of each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import promql_parser as promql
import yaml

from tests.support.engine import ROOT

DASHBOARD, ALERTS = ROOT / "examples/grafana/dashboard.json", ROOT / "examples/grafana/alerts.yml"
GROWING = {"rate", "increase"}  # what counts up is asked for through these, and nothing else is


@dataclass
class Asked:
    """By one expression."""

    labels: dict[str, set[str]] = field(default_factory=dict)  # metric -> labels of its selector
    grouped: set[str] = field(default_factory=set)  # labels of `by`, `on` and `group_left`
    growing: set[str] = field(default_factory=set)  # metrics that are counters, by their function


def load() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text())


def rules(kind: str) -> list[dict[str, Any]]:
    """Those that are a `record` or an `alert`."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


def shown(dashboard: dict[str, Any]) -> Iterator[str]:
    """The expressions of its panels."""
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))  # a row has none


def expressions() -> list[str]:
    """Those of panels and rules."""
    return [*shown(load()), *(rule["expr"] for rule in (*rules("record"), *rules("alert")))]


def parse(expression: str) -> Asked:
    """Read what an expression asks for.

    Raises:
        ValueError: it is no PromQL.
    """
    asked = Asked()

    def visit(node: promql.Expr) -> None:
        match node:
            case promql.VectorSelector():
                matched = {matcher.name for matcher in node.matchers.matchers}
                asked.labels.setdefault(node.name, set()).update(matched)
            case promql.AggregateExpr() if node.modifier:
                asked.grouped.update(node.modifier.labels)
            case promql.BinaryExpr() if node.modifier:
                asked.grouped.update(node.modifier.group_labels or ())
                asked.grouped.update(node.modifier.matching.labels if node.modifier.matching else ())
            case promql.Call() if node.func.name in GROWING:
                asked.growing.add(node.args[0].vector_selector.name)

    # Grafana's own variables stand where PromQL has a time.
    promql.walk(promql.parse(re.sub(r"\$__\w+", "5m", expression)), visit)
    return asked


def variables(dashboard: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Variable -> metric and label that its values come from."""
    pairs = {}
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            text = variable["query"]["query"]
            match = re.fullmatch(r"label_values\(([\w:]+), (\w+)\)", text)
            assert match, text
            pairs[variable["name"]] = (match[1], match[2])
    return pairs
