"""Runs real vLLM engines, each in a process of its own, and brings back what they said.

A process per engine keeps environments apart (V1 or V2 runner, Triton interpreter) and ends with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "examples/tiny"
TRITON_CPU = Path(__file__).parent / "triton_cpu"
TIMEOUT_S = 900


@dataclass(frozen=True)
class EngineRun:
    """One engine, and what to do with it, in this order: states, then texts."""

    prompts: list[list[int]]  # token ids
    max_tokens: int = 128
    draft: Path | None = None
    k: int = 4
    runner: str = "v1"
    eager: bool = True
    concurrency: int = 1  # requests at a time
    temperature: float = 0.0
    seed: int | None = None
    record_drafts: bool = False
    state_prompt: list[int] | None = None  # capture the states handed to the draft for this prompt
    logprobs: int | None = None
    options: dict[str, Any] = field(default_factory=dict)  # additional_config.eagle_ext
    engine_args: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)  # on top of `engine_environment`
    target: Path = TINY / "target"


@dataclass(frozen=True)
class EngineResult:
    outputs: list[list[int]]  # per prompt
    logprobs: list[list[dict[str, float]]]  # per prompt and token: token id -> logprob
    drafts: list[list[list[int]]]  # per prompt, in order: the K drafted ids
    states: list[list[float]] | None  # [tokens, n * Ht]
    num_drafts: int
    accepted_per_position: list[int]
    log: str

    @property
    def acceptance(self) -> list[float]:
        return [count / self.num_drafts for count in self.accepted_per_position]


class EngineFailedError(RuntimeError):
    """The engine's process did not reach its end; `log` is all it printed."""

    def __init__(self, log: str) -> None:
        self.log = log
        super().__init__(f"engine failed:\n{log[-4000:]}")


def engine_environment(runner: str) -> dict[str, str]:
    environment = dict(
        os.environ,
        VLLM_USE_V2_MODEL_RUNNER="1" if runner == "v2" else "0",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_NO_USAGE_STATS="1",
        HF_HUB_OFFLINE="1",
        PYTHONPATH=python_path(),
    )
    if runner == "v2" and not has_gpu():
        environment["TRITON_INTERPRET"] = "1"
        environment["PYTHONPATH"] = python_path(TRITON_CPU)
    return environment


def python_path(*first: Path) -> str:
    """Put folders and the project's root before those of PYTHONPATH, where tools/isa.py may be."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(filter(None, [*map(str, first), str(ROOT), *given])))


# Engines one after the other in one process, where a start takes seconds.
IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def run_engine(run: EngineRun) -> EngineResult:
    """Start the engine in a child process, wait for its end, read its result.

    Raises:
        EngineFailedError: the process ended with an error or without a result.
        subprocess.TimeoutExpired: it did not end within TIMEOUT_S.
    """
    result, log = run_child(
        "engine_process",
        asdict(run),
        environment=engine_environment(run.runner) | run.environment,
        timeout_s=TIMEOUT_S,
    )
    return EngineResult(**result, log=log)


def run_child(
    module: str, job: Any, *, environment: dict[str, str], timeout_s: float
) -> tuple[Any, str]:
    """`python -m tests.support.<module> JOB RESULT`, both JSON: its result, and all it printed.

    Raises:
        EngineFailedError: the process ended with an error or without a result.
        subprocess.TimeoutExpired: it did not end in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        job_file, result = Path(folder, "job.json"), Path(folder, "result.json")
        job_file.write_text(json.dumps(job, default=str))
        process = subprocess.run(
            [sys.executable, "-m", f"tests.support.{module}", str(job_file), str(result)],
            env=environment,
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )
        if process.returncode != 0 or not result.exists():
            raise EngineFailedError(process.stdout)
        return json.loads(result.read_text()), process.stdout
