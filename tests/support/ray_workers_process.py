"""Starts an engine under Ray whose workers have another installation than the driver.

It stays apart from `engine_process`: each job has a Ray of its own, with the workers' environment.

    python -m tests.support.ray_workers_process JOBS RESULT

JOBS: JSON, name -> the workers' environment variables. RESULT: name -> what the user of `LLM()` sees.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import ray
from vllm import LLM

from tests.support.engine import TINY


def start() -> str:
    """What the engine's constructor raised."""
    try:
        LLM(
            str(TINY / "target"),
            max_model_len=256,
            enforce_eager=True,
            gpu_memory_utilization=0.3,
            tensor_parallel_size=2,
            distributed_executor_backend="ray",
            speculative_config={
                "method": "eagle3",
                "model": str(TINY / "postnorm"),
                "num_speculative_tokens": 4,
            },
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the result
        return f"{type(error).__module__}.{type(error).__name__}: {error}"
    return "started"


def main() -> None:
    os.chdir(Path(sys.argv[2]).parent)  # Ray's workers look for modules here first of all
    jobs, results = json.loads(Path(sys.argv[1]).read_text()), {}
    for name, environment in jobs.items():
        print(f"=== {name}", flush=True)
        ray.init(runtime_env={"env_vars": environment})
        results[name] = start()
        ray.shutdown()
    Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
