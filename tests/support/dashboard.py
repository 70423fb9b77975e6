"""What a Grafana dashboard asks Prometheus for: metrics and the labels that it wants of each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.engine import ROOT

PATH = ROOT / "examples/grafana/dashboard.json"
FUNCTIONS = {"sum", "max", "rate", "histogram_quantile"}
KEYWORDS = {"by", "on", "group_left"}
_SELECTOR = re.compile(r"([a-zA-Z_][\w:]*)\s*\{([^}]*)\}")
_LIST = re.compile(r"\b(by|on|group_left)\s*\(([^)]*)\)")


@dataclass(frozen=True)
class Asked:
    """By one expression."""

    labels: dict[str, set[str]]  # metric -> labels of its selector
    grouped: set[str]  # labels of `by`, `on` and `group_left`
    rest: set[str]  # every other name


def load() -> dict[str, Any]:
    return json.loads(PATH.read_text())


def expressions(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])


def parse(expression: str) -> Asked:
    labels: dict[str, set[str]] = {}
    for metric, matchers in _SELECTOR.findall(expression):
        labels.setdefault(metric, set()).update(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
    rest = re.sub(r"\[[^]]*\]", "", _SELECTOR.sub("", expression))
    grouped = {name.strip() for _, names in _LIST.findall(rest) for name in names.split(",")}
    words = re.findall(r"[a-zA-Z_][\w:]*", _LIST.sub("", rest))
    return Asked(labels, grouped - {""}, set(words))


def variables(dashboard: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Variable -> metric and label that its values come from."""
    found = {}
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            text = variable["query"]["query"]
            match = re.fullmatch(r"label_values\(([\w:]+), (\w+)\)", text)
            assert match, text
            found[variable["name"]] = (match[1], match[2])
    return found
