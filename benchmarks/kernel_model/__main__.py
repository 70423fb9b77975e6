# SPDX-License-Identifier: Apache-2.0
"""Starts `run` with a Triton that compiles; see the package's docstring."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.kernel_model import environment


def main() -> int:
    command = [sys.executable, "-m", "benchmarks.kernel_model.run", *sys.argv[1:]]
    status = subprocess.run(command, env=environment(), check=False).returncode
    if status == 0 and "--write" in sys.argv[1:]:
        from benchmarks.kernel_model.page import write_page  # reads the table just written
        from benchmarks.kernel_model.results import read_results

        write_page(read_results())
    return status


if __name__ == "__main__":
    raise SystemExit(main())
