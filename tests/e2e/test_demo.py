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
        [sys.executable, "-m", "examples.demo", "--tiny", "--out", str(folder), *arguments],
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


def speed_ups(output: str, name: str) -> list[float]:
    """Return those at one request and at eight."""
    rows = re.findall(rf"^ *{name} .*x +([\d.]+)x *$", output, re.MULTILINE)
    assert len(rows) == 2, output
    return [float(row) for row in rows]


def test_demo_prints_tables_and_draws_a_picture(tmp_path):
    output = run_demo(tmp_path, "--eager", "--prompts", "9", "--max-tokens", "48", "--minutes", "0.1")
    for name in ("native", "post-norm"):
        assert min(speed_ups(output, name)) > 0
    assert "1 at a time: the first 1 took" in output
    assert "8 at a time: the first 8 took" in output
    assert re.search(r"^ *code +9 +[\d.]+ +[\d.]+ *$", output, re.MULTILINE), output
    assert "texts equal those without a draft" in output
    written, last = output.rstrip().rpartition("with the draft:\n")[2].rsplit("\n", 1)
    assert written.startswith(json.loads((TINY / "prompts.jsonl").open().readline())["text"])
    assert len(written.partition("|")[2]) > 48  # characters of as many tokens
    assert last == "Next, serve the same pair: make serve"
    assert (tmp_path / "demo.png").read_bytes()[:4] == b"\x89PNG"
