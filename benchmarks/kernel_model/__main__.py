# SPDX-License-Identifier: Apache-2.0
"""Starts `run` with a Triton that compiles; see the package's docstring."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.kernel_model import environment

if __name__ == "__main__":
    command = [sys.executable, "-m", "benchmarks.kernel_model.run", *sys.argv[1:]]
    raise SystemExit(subprocess.run(command, env=environment(), check=False).returncode)
