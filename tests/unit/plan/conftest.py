from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.unit.memory.configs import GIB_27B, config
from tests.unit.plan.inputs import GIB, write_config, write_shard
from vllm_eagle_ext.cli import app

KEYS = {
    "request", "max_model_len", "weights", "draft_weights_bytes", "kv_budget_bytes", "per_token",
    "replay", "line", "advice", "exit_code", "hybrid_state", "assumptions", "cuda_graphs",
    "draft_head_bytes", "draft_head_share_of_step", "rope_table_bytes",
}  # fmt: skip


@pytest.fixture
def target(tmp_path):
    folder = write_config(tmp_path / "target", config("qwen3_6_27b"))
    write_shard(folder / "model.safetensors", {"weights": int(GIB_27B * GIB)})
    return folder


@pytest.fixture
def plan(target):
    def run(*options, of=target, columns=100):
        release = () if "--vllm" in options else ("--vllm", "0.32")  # whichever is installed
        arguments = ["plan", "--target", str(of), *release, *options]
        environment = {"COLUMNS": str(columns), "TERM": "dumb", "NO_COLOR": "1"}
        return CliRunner(env=environment).invoke(app, arguments)

    return run


@pytest.fixture
def said(plan):
    """What `--json` says."""

    def run(*options, **where):
        result = plan(*options, "--json", **where)
        doc = json.loads(result.stdout)
        assert doc.keys() == {"schema_version", "plans", "exit_code"}
        (entry,) = doc["plans"]
        assert result.exit_code == doc["exit_code"] == entry["exit_code"]
        assert entry.keys() == KEYS
        return entry

    return run
