"""The Grafana dashboard and the alert rules; that a server exports what they ask for:
tests/e2e/test_metrics.py."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.support import queries
from tests.support.engine import ROOT
from vllm_eagle_ext.version import PROJECT_URL

BOARD = queries.load()
TESTS = "tests/fixtures/alerts.yml"
PANELS = BOARD["panels"]


def test_each_panel_asks_the_chosen_source_for_the_chosen_model():
    for panel in (panel for panel in PANELS if panel["type"] != "row"):
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) >= 1
        for source in (panel["datasource"], *(target["datasource"] for target in panel["targets"])):
            assert source == {"type": "prometheus", "uid": "${datasource}"}
    for expression in queries.shown(BOARD):
        selectors = queries.parse(expression).labels
        assert selectors
        assert all(labels >= {"model_name", "instance"} for labels in selectors.values()), expression


def test_variables_are_defined():
    defined = {variable["name"] for variable in BOARD["templating"]["list"]} | {"__rate_interval"}
    used = set(re.findall(r"\$\{?(\w+)", str(PANELS) + str(BOARD["templating"])))
    assert used - {"__all"} <= defined
    assert {"datasource", "model_name", "instance"} <= used


def test_alerts_tell_of_which_model_and_what_to_do():
    names = [rule["alert"] for rule in queries.rules("alert")]
    assert len(set(names)) == len(names) >= 7
    for rule in queries.rules("alert"):
        assert "model_name" in queries.parse(rule["expr"]).grouped
        assert "{{ $labels.model_name }}" in rule["annotations"]["summary"]
        runbook = rule["annotations"]["runbook_url"]
        assert runbook.startswith(PROJECT_URL)
        page, _, section = runbook[runbook.index("docs/") :].partition("#")
        headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
        assert not section or section in [heading.lower().replace(" ", "-") for heading in headings]


@pytest.mark.long
@pytest.mark.parametrize("job", ["check config examples/grafana/prometheus.yml", f"test rules {TESTS}"])
def test_prometheus_reads_the_rules_and_alerts_fire_as_meant(prometheus, job):
    """`check config` reads the rules, too."""
    subprocess.run([prometheus / "promtool", *job.split()], cwd=ROOT, check=True)
