from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.unit.cli.plan.inputs import write_config
from tests.unit.hybrid.test_memory import config
from vllm_eagle_ext.cli import app

KEYS = {
    "request", "max_model_len", "weights", "draft_weights_bytes", "kv_budget_bytes", "slots", "replay",
    "line", "advice", "exit_code",
}  # fmt: skip


@pytest.fixture
def target(tmp_path):
    return write_config(tmp_path / "target", config("qwen3_6_27b"))


@pytest.fixture
def plan(target):
    def run(*options, of=target, columns=100):
        arguments = ["plan", "--target", str(of), *options]
        environment = {"COLUMNS": str(columns), "TERM": "dumb", "NO_COLOR": "1"}
        return CliRunner(env=environment).invoke(app, arguments)

    return run


@pytest.fixture
def said(plan):
    """What `--json` says."""

    def run(*options, **where):
        result = plan(*options, "--json", **where)
        found = json.loads(result.stdout)
        assert result.exit_code == found["exit_code"]
        assert found.keys() == KEYS
        return found

    return run
