"""`make demo` as a user sees it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.support.engine import ROOT, TINY, engine_environment

pytestmark = [pytest.mark.e2e, pytest.mark.long]


def run_demo(folder, *arguments):
    result = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--out", str(folder), *arguments],
        cwd=ROOT,
        env=engine_environment("v1") | {"COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    print(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def speed_up(output: str, name: str) -> float:
    rows = re.findall(rf"^ *{name} .* ([\d.]+)x *$", output, re.MULTILINE)
    assert len(rows) == 1, output
    return float(rows[0])


def test_demo_prints_a_table_and_draws_a_picture(tmp_path):
    output = run_demo(tmp_path, "--eager", "--prompts", "3", "--max-tokens", "48", "--passes", "2")
    for name in ("no draft", "native", "post-norm"):
        assert speed_up(output, name) > 0
    for name in ("native", "post-norm"):
        assert re.search(rf"^{name}: [\d.]+x, [\d.]+x to [\d.]+x over 2 passes\.$", output, re.MULTILINE)
    assert "texts equal those without a draft" in output
    written, last = output.rstrip().rpartition("with the post-norm draft:\n")[2].rsplit("\n", 1)
    assert written.startswith(json.loads((TINY / "prompts.jsonl").open().readline())["text"])
    assert len(written.partition("|")[2]) > 48  # characters of as many tokens
    assert last == "Next, serve the same pair: make serve"
    assert (tmp_path / "demo.png").read_bytes()[:4] == b"\x89PNG"


def test_demo_reaches_its_speed_up(tmp_path):
    """The figure of the README: a ratio within one run, far enough from the bound to be repeatable."""
    assert speed_up(run_demo(tmp_path), "post-norm") >= 1.4
