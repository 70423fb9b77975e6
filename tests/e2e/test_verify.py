"""`vllm-eagle verify --gate-layouts` on the gated pair: it finds the layout that the pair has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engine import ROOT, TINY, engine_environment

pytestmark = [pytest.mark.e2e, pytest.mark.long]


def test_the_layout_of_the_gated_pair_wins():
    engine = {"max_model_len": 1024, "enforce_eager": True, "gpu_memory_utilization": 0.3}
    command = [str(Path(sys.executable).parent / "vllm-eagle"), "verify", str(TINY / "gated")]
    command += ["--target", str(TINY / "target"), "--gate-layouts", "--json"]
    command += ["--engine", json.dumps(engine), "--prompts", str(TINY / "prompts.jsonl")]
    command += ["--max-tokens", "16"]
    result = subprocess.run(
        command, cwd=ROOT, env=engine_environment("v1"), capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    verdict = json.loads(result.stdout)
    assert verdict["winner"] == "interleaved"
    right, wrong = verdict["measured"]
    assert right["rates"][0] > 0.6 > 0.4 > wrong["rates"][0]
