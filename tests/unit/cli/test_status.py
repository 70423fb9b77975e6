"""`vllm-eagle status`, and the commands that need an engine where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest
from typer.testing import CliRunner
from vllm.triton_utils import HAS_TRITON

from vllm_eagle_ext.cli import app
from vllm_eagle_ext.compat import vllm_version

pytestmark = pytest.mark.promise("`status` says what is wrong")

runner = CliRunner()


def test_all_is_well():
    result = runner.invoke(app, ["status"])
    assert result.exit_code == 0
    assert "NO " not in result.stdout
    assert "vLLM knows our drafters: Eagle3EagleExtLlamaForCausalLM" in result.stdout


def test_what_a_start_would_do_here():
    said = runner.invoke(app, ["status"]).stdout
    device, on_v2 = "cpu" if "vLLM would run on: cpu" in said else "cuda", HAS_TRITON
    assert f"ok  vLLM would run on: {device}, model runner {'v2' if on_v2 else 'v1'}: " in said
    assert ("--no-enable-prefix-caching" in said) is not on_v2
    assert "ok  replay for hybrid targets: yes" in said
    assert "ok  look for this line in the log of a start: vllm-eagle-ext: Drafting is on: .." in said


def test_json_has_the_same_by_keys(monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    doc = json.loads(runner.invoke(app, ["status", "--json"]).stdout)
    assert (doc["ok"], doc["problems"], doc["vllm"]) == (True, [], vllm_version())
    assert doc["runner"] == {"name": "v1", "why": "VLLM_USE_V2_MODEL_RUNNER=0"}
    assert doc["replay"]["possible"] is (doc["device"] == "cpu")
    assert "Eagle3EagleExtLlamaForCausalLM" in doc["drafters"]


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.32.1", "run: all tests, on CPUs"),
        ("0.33.0", "run in parts: its Python files on CPUs, its CUDA build once, on an H100"),
    ],
)
def test_what_the_release_was_tested_by(monkeypatch, version, said):
    monkeypatch.setattr("vllm_eagle_ext.cli.status.vllm_version", lambda: version)
    result = runner.invoke(app, ["status"])
    assert result.exit_code == 0
    assert f"ok  vLLM {version}, {said}" in result.stdout


def no_distribution(name):
    """That of pip's CPU wheel is called otherwise, and the vllm command asks for this name."""
    raise PackageNotFoundError(name)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("vllm_version", lambda: "0.99.0", "vLLM 0.99.0, not run: outside >=0.32,<0.34"),
        ("find_spec", lambda name: None,
         "vLLM is not installed. The extra `cuda` of this package brings it, or `cpu`; in a clone,"),
        ("version", no_distribution,
         "the vllm command will not start: no distribution is called vllm"),
        ("entry_points", lambda group: [], "no entry point eagle_ext"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_is_wrong(monkeypatch, name, value, said):
    monkeypatch.setattr(f"vllm_eagle_ext.cli.status.{name}", value)
    result = runner.invoke(app, ["status"])
    assert result.exit_code == 1
    assert f"NO  {said}" in result.stdout


def test_vllm_plugins_that_keeps_us_out(monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "all")
    result = runner.invoke(app, ["status"])
    assert result.exit_code == 1
    assert "NO  VLLM_PLUGINS='all' keeps eagle_ext out" in result.stdout


def in_a_process(folder, *words):
    """Run a command where the modules in a folder come first."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", "from vllm_eagle_ext.cli import app; app()", *words]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_vllm_that_cannot_be_imported(tmp_path):
    """As next to torchvision for CUDA."""
    (tmp_path / "torchvision.py").write_text(
        'raise RuntimeError("operator torchvision::nms\\ndoes not exist")\n'
    )
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").write_text("import torchvision\n")
    failed = in_a_process(tmp_path, "selftest")
    assert failed.returncode == 2
    assert failed.stderr.startswith("vLLM cannot be imported (RuntimeError: operator torchvision::nms")
    assert "Traceback" not in failed.stdout + failed.stderr
    done = in_a_process(tmp_path, "status")
    assert done.returncode == 1
    assert (
        "NO  vLLM cannot be imported (RuntimeError: operator torchvision::nms does not exist)"
        in done.stdout
    )
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("missing", ["vllm", "torch"])
@pytest.mark.parametrize(
    "words",
    [
        ["verify", "DRAFT", "--target", "T"],
        ["bench", "DRAFT", "--target", "T", "--json"],
        ["selftest"],
    ],
    ids=lambda words: words[0],
)
def test_commands_that_start_engines_need_vllm_and_torch(monkeypatch, missing, words):
    monkeypatch.setattr(
        "vllm_eagle_ext.cli.terminal.find_spec", lambda name: None if name == missing else object()
    )
    result = runner.invoke(app, words)
    assert result.exit_code == 2
    assert f"This command needs {missing}. The extra `cuda` of this package brings it" in result.output
    assert len(result.output.strip().splitlines()) == 1
