"""An engine's process ends with a child that is killed, and says so, instead of waiting for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.engine import ROOT

PROGRAM = """
import multiprocessing, os, signal, threading, time
from vllm_eagle_ext.measure.engine.process import _end_with_killed

child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), name="EngineCore")
child.start()
threading.Timer(0.3, os.kill, (child.pid, signal.{signal})).start()
{more}
_end_with_killed()
"""
# As Popen.poll() answers while another thread, vLLM's, has reaped the child and not yet kept its status.
REAPED = """
poll, until = child._popen.poll, time.monotonic() + 1
child._popen.poll = lambda *flag: poll(*flag) if time.monotonic() > until else None
"""


@pytest.mark.parametrize(
    ("name", "more", "status", "said"),
    [
        ("SIGKILL", "", 1, "RuntimeError: process EngineCore died (exit code: -9)\n"),
        ("SIGKILL", REAPED, 1, "RuntimeError: process EngineCore died (exit code: -9)\n"),
        ("SIGSEGV", "", 1, "RuntimeError: process EngineCore died (exit code: -11)\n"),
        ("SIGTERM", "", 0, ""),
    ],
)
def test_only_a_killed_child_ends_it(name, more, status, said):
    """vLLM itself ends its children with SIGTERM."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(signal=name, more=more)], capture_output=True, text=True,
        check=False, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (status, said)
