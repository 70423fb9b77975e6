"""Two minutes of `make soak` on each target; the bounds are in tests/soak/report.py."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.engine import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.long]


@pytest.mark.parametrize("target", ["tiny", "hybrid"])
def test_two_minutes(tmp_path, target):
    output, log = tmp_path / "soak.json", tmp_path / "server.log"
    command = [sys.executable, "-m", "tests.soak", "--minutes", "2", "--target", target]
    command += ["--output", str(output), "--log", str(log)]
    result = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900,
        check=False,
    )  # fmt: skip
    print("", result.stdout, sep="\n")
    assert result.returncode == 0, result.stdout
    found = json.loads(output.read_text())
    assert all(check["holds"] for check in found["checks"])
    assert found["most_running"] > 32
