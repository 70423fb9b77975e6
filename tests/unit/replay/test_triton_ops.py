"""Starts the tests of the Triton kernels in a process with the interpreter, where there is no GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engine import ROOT, TRITON_CPU, has_gpu, python_path

HERE = Path(__file__).parent
OPS = "vllm_eagle_ext.replay.ops"
WITHOUT_VLLM = f"""
import sys
sys.modules["vllm"] = None  # importing it raises
import {OPS}.types, {OPS}.reference, {OPS}.triton, {OPS}.triton_chunked
assert not [name for name in sys.modules if name.startswith("vllm.")]
"""


def run(*command: str, timeout_s: float, **environment: str) -> str:
    process = subprocess.run(
        [sys.executable, *command],
        env=dict(os.environ, PYTHONPATH=python_path()) | environment, cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout_s, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stdout[-8000:]
    return process.stdout


def run_interpreted(*arguments: str, timeout_s: float) -> int:
    """How many tests passed, or were collected."""
    printed = run(
        *("-m", "pytest", *arguments, "-q", "-p", "no:cacheprovider"),
        timeout_s=timeout_s, TRITON_INTERPRET="1", PYTHONPATH=python_path(TRITON_CPU),
    )  # fmt: skip
    summary = re.search(r"(\d+) (?:passed|tests collected)", printed)
    assert summary, printed[-8000:]
    return int(summary[1])


@pytest.mark.full
@pytest.mark.skipif(has_gpu(), reason="pytest runs `interpreted` itself")
def test_kernels():
    """Both kinds of kernels at the smallest sizes."""
    files = ("test_bits.py", "test_commit.py", "test_chunked.py::test_every_accept_length")
    paths = (f"{HERE}/interpreted/{file}" for file in files)
    assert run_interpreted(*paths, "-m", "not full and not long", timeout_s=600) > 30


@pytest.mark.long
@pytest.mark.skipif(has_gpu(), reason="pytest runs `interpreted` itself")
def test_nightly_has_all_kernels():
    assert "/replay/interpreted" in (ROOT / "Makefile").read_text()
    assert run_interpreted(f"{HERE}/interpreted", "--collect-only", timeout_s=600) > 200


def test_nothing_needs_vllm():
    run("-c", WITHOUT_VLLM, timeout_s=120)


@pytest.mark.parametrize("state", ["fp32", pytest.param("bf16", marks=pytest.mark.long)])
@pytest.mark.skipif(has_gpu(), reason="a GPU compares the results themselves")
def test_compiled_kernels_sum_in_the_order_of_vllms(state):
    """Needs no GPU: the compiler's output for one, with the same layouts and the same arithmetic."""
    pytest.importorskip("triton.backends.nvidia")
    run(
        *("-m", "tests.unit.replay.compiled", state),
        timeout_s=300, TRITON_INTERPRET="0", PYTHONPATH=python_path(TRITON_CPU),
    )  # fmt: skip
