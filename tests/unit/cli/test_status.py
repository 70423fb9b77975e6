from __future__ import annotations

import pytest
from typer.testing import CliRunner

from vllm_eagle_ext.cli import app

pytestmark = pytest.mark.promise("`status` says what is wrong")

runner = CliRunner()


def test_all_is_well():
    result = runner.invoke(app, ["status"])
    assert result.exit_code == 0
    assert "NO " not in result.stdout
    assert "Eagle3EagleExtLlamaForCausalLM is registered" in result.stdout


def test_vllm_plugins_that_keeps_us_out(monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "all")
    result = runner.invoke(app, ["status"])
    assert result.exit_code == 1
    assert "NO  VLLM_PLUGINS='all' keeps eagle_ext out" in result.stdout


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.32.1", "a release that the tests were run with (>=0.32,<0.33)"),
        (
            "0.33.0",
            "a release whose Python files were run, on a CPU with compiled parts of >=0.32,<0.33",
        ),
    ],
)
def test_what_the_release_was_tested_by(monkeypatch, version, said):
    monkeypatch.setattr("vllm_eagle_ext.cli.status.vllm_version", lambda: version)
    result = runner.invoke(app, ["status"])
    assert result.exit_code == 0
    assert f"ok  vLLM {version}, {said}" in result.stdout


def test_outside_the_tested_range(monkeypatch):
    monkeypatch.setattr("vllm_eagle_ext.cli.status.vllm_version", lambda: "0.99.0")
    result = runner.invoke(app, ["status"])
    assert result.exit_code == 1
    assert "NO  vLLM 0.99.0, outside the tested range >=0.32,<0.34" in result.stdout


def test_no_vllm(monkeypatch):
    monkeypatch.setattr("vllm_eagle_ext.cli.status.find_spec", lambda name: None)
    result = runner.invoke(app, ["status"])
    assert result.exit_code == 1
    assert "NO  vLLM is not installed" in result.stdout


def test_no_entry_point(monkeypatch):
    monkeypatch.setattr("vllm_eagle_ext.cli.status.entry_points", lambda group: [])
    result = runner.invoke(app, ["status"])
    assert result.exit_code == 1
    assert "NO  no entry point eagle_ext" in result.stdout
