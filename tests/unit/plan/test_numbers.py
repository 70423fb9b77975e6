"""Numbers beyond any machine's: an answer or one line at once, and no memory spent on it."""

from __future__ import annotations

import resource
import subprocess
import sys

from tests.unit.memory.configs import config
from tests.unit.plan.inputs import write_config

GPU = ("--gpu-mem", "140", "--max-model-len", "32768", "--weights-gib", "50")
LARGE = ["1000000000", "2147483647", "1" + 30 * "0", "1" + 400 * "0", 5000 * "9"]
COUNTS = ["-k", "--max-num-seqs", "--max-model-len", "--tp"]
CASES = [
    *[(option, number) for option in COUNTS for number in LARGE],
    *[(option, f"1e{power}") for option in ("--gpu-mem", "--weights-gib", "--reserve-gib")
      for power in (12, 300, 308, 400)],
    ("--vllm", "0.32" + 5000 * "9"), ("--vllm", 5000 * "9"), ("--device", "sm_" + 5000 * "9"),
]  # fmt: skip


def within_bounds():
    resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
    resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))


def test_of_each_option(tmp_path):
    """All in one process of 20 seconds and 2 GiB: the answers differ, none is a traceback."""
    target = write_config(tmp_path / "target", config("qwen3_6_27b"))
    script = f"""
import traceback
from typer.testing import CliRunner
from vllm_eagle_ext.cli import app
for option, number in {CASES!r}:
    given = dict(zip(("-k", *{GPU[::2]!r}), ("3", *{GPU[1::2]!r})), **{{option: number}})
    words = [word for pair in given.items() for word in pair]
    result = CliRunner().invoke(app, ["plan", "--target", {str(target)!r}, *words])
    if not isinstance(result.exception, (SystemExit, type(None))):
        print(option, number[:9], repr(result.exception))
    elif result.exit_code == 2 and not result.stderr.strip():
        print(option, number[:9], "nothing said")
print("done")
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False,
        preexec_fn=within_bounds,
    )  # fmt: skip
    assert result.stdout == "done\n", result.stdout + result.stderr[-2000:]
