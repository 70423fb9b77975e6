"""An engine's process ends with a child that is killed, and says so, instead of waiting for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.engine import ROOT

PROGRAM = """
import multiprocessing, os, signal, time
from vllm_eagle_ext.measure.engine.process import _end_with_killed

child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), name="EngineCore")
child.start()
os.kill(child.pid, signal.{signal})
_end_with_killed()
"""


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [("SIGKILL", 1, "process EngineCore died (exit code: -9)\n"), ("SIGTERM", 0, "")],
)
def test_only_a_killed_child_ends_it(name, status, said):
    """vLLM itself ends its children with SIGTERM."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(signal=name)], capture_output=True, text=True,
        check=False, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (status, said)
