"""The program of `run_child`: it imports vLLM and a module of tests.support, and forks for each job.

The import takes longer than a small engine.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
from typing import Any, ClassVar, TextIO

from vllm_eagle_ext.measure.engine.process import main

# Most of what an engine imports.
_MODULES = ("vllm.entrypoints.llm", "vllm.v1.worker.cpu_worker", "vllm.model_executor.models.qwen3_next")


class Forks:
    COMMANDS: ClassVar[tuple[str, ...]] = ("run",)

    def __init__(self, arguments: dict[str, Any], *_: Any) -> None:
        for name in _MODULES:
            importlib.import_module(name)
        self._module = importlib.import_module(f"tests.support.{arguments['module']}")
        gc.collect()
        gc.freeze()

    def run(self, job: Any, log: str, timeout_s: int) -> Any:
        with tempfile.TemporaryFile("w+") as result:
            if (child := os.fork()) == 0:
                signal.alarm(timeout_s)
                self._run_here(job, log, result)
            _, status = os.waitpid(child, 0)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # what is left of its session
            result.seek(0)
            if not (text := result.read()):
                raise RuntimeError(f"exit status {os.waitstatus_to_exitcode(status)}")
            return json.loads(text)

    def _run_here(self, job: Any, log: str, result: TextIO) -> None:
        """End this process with the result written; all that it prints goes to the log."""
        os.setsid()
        for path, descriptors in ((os.devnull, (0,)), (log, (1, 2))):
            opened = os.open(path, os.O_RDWR | os.O_CREAT)
            for descriptor in descriptors:
                os.dup2(opened, descriptor)
        status = 1
        try:
            result.write(json.dumps(self._module.run(job)))
            result.flush()
            status = 0
        except BaseException:  # noqa: BLE001 - the log says it
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)


if __name__ == "__main__":
    main(Forks)
