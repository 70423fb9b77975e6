"""Starts programs that build real vLLM engines, and brings back what they found."""

from __future__ import annotations

import atexit
import json
import os
import platform
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.support.lifetime import end_children_with_us
from vllm_eagle_ext.measure.engine.client import EngineFailedError as ProcessFailedError
from vllm_eagle_ext.measure.engine.client import EngineProcess

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "examples/tiny"
TRITON_CPU = Path(__file__).parent / "triton_cpu"
TIMEOUT_S = 900


class EngineFailedError(RuntimeError):
    """The engine's process did not reach its end; `log` is all it printed."""

    def __init__(self, log: str) -> None:
        self.log = log
        super().__init__(f"engine failed:\n{log[-4000:]}")


def engine_environment(runner: str) -> dict[str, str]:
    end_children_with_us()
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


def lacks_avx512() -> bool:
    """Tell whether vLLM would load its library for AVX2, by what it asks itself."""
    import torch

    return platform.machine() in ("x86_64", "AMD64") and not torch.cpu._is_avx512_supported()


def run_child(module: str, job: Any, *, environment: dict[str, str], timeout_s: int) -> tuple[Any, str]:
    """What the `run` of `tests.support.<module>` makes of a job of JSON, and all that it printed.

    Raises:
        EngineFailedError: the process ended with an error, without a result, or not in time.
    """
    with tempfile.NamedTemporaryFile("r", errors="replace") as log:
        command = {"do": "run", "log": log.name, "timeout_s": timeout_s}
        command["job"] = json.loads(json.dumps(job, default=str))
        try:
            result = _warm_process(module, environment).ask(command)
        except ProcessFailedError as error:
            raise EngineFailedError("\n".join([*error.more, log.read(), str(error.value)])) from None
        return result, log.read()


_warm: dict[tuple[str, frozenset[tuple[str, str]]], EngineProcess] = {}
_until_the_end = ExitStack()
atexit.register(_until_the_end.close)


def _warm_process(module: str, environment: Mapping[str, str]) -> EngineProcess:
    """The process of tests.support.forks for the module's jobs in this environment."""
    environment = {name: value for name, value in environment.items() if name != "PYTEST_CURRENT_TEST"}
    key = module, frozenset(environment.items())
    if key not in _warm or _warm[key].process.poll() is not None:
        folder = _until_the_end.enter_context(tempfile.TemporaryDirectory())
        process = EngineProcess({"module": module}, Path(folder, "log"))
        process.PROGRAM, process.environment = "tests.support.forks", environment
        _warm[key] = _until_the_end.enter_context(process)
    return _warm[key]
