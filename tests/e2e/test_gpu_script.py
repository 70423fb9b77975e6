"""`python -m benchmarks.gpu`, of which each stage is reached without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.engine import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.long]

STAGES = ("machine", "kernels", "engines", "shapes", "tests")


def test_each_stage_writes_what_it_found(tmp_path):
    line = [sys.executable, "-m", "benchmarks.gpu", str(tmp_path), "--scale", "tiny", "--minutes", "12"]
    run = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True, timeout=900)
    reports = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in STAGES}
    assert [name for name, report in reports.items() if "error" in report] == [], run.stdout
    engines = reports["engines"]["engines"]
    assert {name: engine.get("error") for name, engine in engines.items() if "error" in engine} == {}
    assert engines["hybrid replay"]["as_without_a_draft"] == [2, 2]
    assert engines["quarter replay 7"]["tokens_per_s"] > 0
    assert reports["kernels"]["exit_code"] == 0
    assert reports["shapes"]["checks"]
    assert str(tmp_path) not in "".join(path.read_text() for path in tmp_path.glob("*.json"))


def test_an_engine_that_cannot_be_built_is_tried_at_each_level(tmp_path):
    from benchmarks.gpu.pool import LEVELS, Job, run

    job = Job(name="none", ask="generate", engine={"model": str(tmp_path / "absent")}, given={})
    (outcome,) = run([job], 200, tmp_path, lambda done: None, at_once=1).values()
    assert outcome.result is None
    assert tuple(outcome.failed_levels) == LEVELS
    assert "absent" in outcome.error
