"""Starts the process that serves target families, and brings back what it saw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.engine import IN_PROCESS, engine_environment, run_child

TIMEOUT_S = 1500


def serve_families(names: Sequence[str], *, ranks: int = 1, runner: str = "v1") -> dict[str, Any]:
    """By family, what `tests.support.targets.process` found.

    Raises:
        EngineFailedError: the process ended without results.
    """
    environment = engine_environment(runner) | IN_PROCESS
    if ranks > 1:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(ranks)))
    job = {"families": names, "ranks": ranks}
    return run_child("targets.process", job, environment=environment, timeout_s=TIMEOUT_S)[0]
