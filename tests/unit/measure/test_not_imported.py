"""Processes that serve import nothing that measures, and the other commands need no extra."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.engine import ROOT, TINY

SERVING = """
import importlib, pkgutil, sys
import vllm_eagle_ext
from vllm_eagle_ext import draft, families, memory, replay, start

vllm_eagle_ext.register()
for package in (draft, families, memory, replay, start):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
"""
COMMAND = """
import sys
sys.modules["matplotlib"] = None
from vllm_eagle_ext.cli import app
try:
    app({arguments})
except SystemExit as end:
    assert end.code == 0, end.code
"""
LOADED = """
import json
print()
print(json.dumps([name for name in sys.modules if name.startswith("vllm_eagle_ext.")]))
"""


def loaded_by(program: str) -> set[str]:
    """The package's modules that a fresh process has imported after this."""
    result = subprocess.run(
        [sys.executable, "-c", program + LOADED], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return {name.removeprefix("vllm_eagle_ext.") for name in json.loads(result.stdout.splitlines()[-1])}


def of(room: str, loaded: set[str]) -> set[str]:
    return {name for name in loaded if name == room or name.startswith(f"{room}.")}


@pytest.mark.long
def test_a_serving_process():
    """Registration, start, families and replay, all their modules."""
    loaded = loaded_by(SERVING)
    assert {"plugin", "start.build", "families.eagle3.model", "replay.layer"} <= loaded
    assert of("measure", loaded) | of("cli", loaded) == set()


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--help"], id="help"),
        pytest.param(["verify", "--help"], id="help of verify"),
        pytest.param(["bench", "--help"], id="help of bench"),
        pytest.param(
            ["check", str(TINY / "postnorm"), "--target", str(TINY / "target")],
            id="check",
            marks=pytest.mark.long,
        ),
        pytest.param(
            ["plan", "--target", str(TINY / "hybrid_target"), "-k", "7", "--gpu-mem", "80"], id="plan"
        ),
    ],
)
def test_commands_that_measure_nothing(arguments):
    """Without the extra's packages."""
    loaded = loaded_by(COMMAND.format(arguments=arguments))
    assert "cli.parameters" in loaded
    assert of("measure", loaded) == set()
