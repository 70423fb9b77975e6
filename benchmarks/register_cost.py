"""What `register()` adds to a process that already has vLLM: `python benchmarks/register_cost.py`.

Median and range in milliseconds over fresh processes, the package's own import included.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

RUNS = 7
CODE = """
import time
import vllm.engine.arg_utils, vllm.model_executor.models.registry
started = time.perf_counter()
import vllm_eagle_ext
vllm_eagle_ext.register()
print("milliseconds", 1000 * (time.perf_counter() - started))
"""


def one_run() -> float:
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    return float(result.stdout.splitlines()[-1].split()[-1])


def main() -> None:
    times = sorted(one_run() for _ in range(RUNS))
    print(
        f"register(): median {statistics.median(times):.1f} ms, "
        f"{times[0]:.1f} to {times[-1]:.1f} ms over {RUNS} processes"
    )


if __name__ == "__main__":
    main()
