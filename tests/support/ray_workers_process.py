"""Starts an engine under Ray whose workers have another installation than the driver.

It stays apart from `engine_process`: each job has a Ray of its own, with the workers' environment.
"""

from __future__ import annotations

import os
import tempfile

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


def run(jobs: dict[str, dict[str, str]]) -> dict[str, str]:
    """By name of a job, which has the workers' environment variables: what the user of `LLM()` sees."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # Ray's workers look for modules here first of all
        for name, environment in jobs.items():
            print(f"=== {name}", flush=True)
            ray.init(runtime_env={"env_vars": environment})
            results[name] = start()
            ray.shutdown()
        os.chdir("/")
    return results
