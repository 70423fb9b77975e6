"""`python -m benchmarks.confidence` on both tiny pairs, on few prompts: figures, and a cut-off."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.engine import ROOT, TINY, engine_environment

pytestmark = [pytest.mark.e2e, pytest.mark.long]
TIMEOUT_S = 600


def printed(*arguments):
    """What a run prints: the lines of its table, and its figures."""
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.confidence", *arguments],
        cwd=ROOT, env=engine_environment("v1"), capture_output=True, text=True, timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
    lines = result.stdout.splitlines()
    shown = next(line for line in reversed(lines) if line.startswith("{"))
    return [line for line in lines if line.startswith("| ")], json.loads(shown)


@pytest.mark.parametrize("pair", ["dense", "hybrid"])
def test_calibration(pair):
    table, found = printed("--pair", pair, "--texts", "16", "--tokens", "48")
    print("\n" + "\n".join(table), found["accepted_per_position"])
    positions = found["accepted_per_position"]
    assert found["drafts"] > 150
    assert len(positions) == found["k"]
    assert positions == sorted(positions, reverse=True)
    trained = json.loads((TINY / "report.json").read_text())
    expected = trained["postnorm" if pair == "dense" else "dflash"]["acceptance"][0]
    assert positions[0] == pytest.approx(expected, abs=0.15)
    kept = {line.split(" | ")[0][2:]: float(line.split(" | ")[2]) for line in table[1:]}
    assert kept["all"] == 1
    assert kept["running product >= 0.02"] >= kept["running product >= 0.2"] > 0.5


def test_a_cut_off_takes_turns():
    table, found = printed(
        "--pair", "hybrid", "--cut-off", "--requests", "2", "--rounds", "2", "--steps", "4"
    )
    print("\n" + "\n".join(table))
    assert found["cut_off"] == 0.05
    rates = [float(cell) for cell in table[1].split(" | ")[1:6]]
    assert all(rate > 0 for rate in rates)
