"""The Grafana dashboard and the alert rules; that a server exports what they ask for:
tests/e2e/test_metrics.py."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.support import queries
from tests.support.engine import ROOT

BOARD = queries.load()
TESTS = "tests/fixtures/alerts.yml"
PANELS = BOARD["panels"]


def test_each_panel_asks_the_chosen_source_for_the_chosen_model():
    for panel in PANELS:
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) >= 1
        for source in (panel["datasource"], *(target["datasource"] for target in panel["targets"])):
            assert source == {"type": "prometheus", "uid": "${datasource}"}
    for expression in queries.shown(BOARD):
        selectors = queries.parse(expression).labels
        assert selectors
        assert all("model_name" in labels for labels in selectors.values()), expression


@pytest.fixture(scope="module")
def promtool(tmp_path_factory):
    """Prometheus' own checker; Debian's where none is installed."""
    if found := shutil.which("promtool"):
        return found
    if not shutil.which("apt-get"):
        pytest.skip("promtool is not installed, and apt-get is not there to download it")
    folder = tmp_path_factory.mktemp("prometheus")
    download = "apt-get -qq download prometheus"
    script = f"{download} || (apt-get -qq update && {download}) && dpkg -x prometheus_*.deb ."
    subprocess.run(["sh", "-c", script], cwd=folder, check=True)
    return folder / "usr/bin/promtool"


@pytest.mark.long
@pytest.mark.parametrize("job", ["check rules examples/grafana/alerts.yml", f"test rules {TESTS}"])
def test_prometheus_reads_the_alerts_and_they_fire_as_meant(promtool, job):
    subprocess.run([promtool, *job.split()], cwd=ROOT, check=True)


@pytest.mark.long
def test_a_wrong_threshold_is_seen(promtool, tmp_path):
    wrong = tmp_path / "alerts.yml"
    wrong.write_text(queries.ALERTS.read_text().replace("< 0.5 *", "< 0.05 *"))
    (tmp_path / "tests.yml").write_text(
        (ROOT / TESTS).read_text().replace("../../examples/grafana/alerts.yml", str(wrong))
    )
    job = subprocess.run(
        [promtool, "test", "rules", tmp_path / "tests.yml"], capture_output=True, text=True
    )
    assert job.returncode == 1
    assert "DraftAcceptanceFell" in job.stdout + job.stderr
