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
from collections.abc import Callable
from typing import Any, ClassVar

from vllm_eagle_ext.measure.engine.process import main

# Most of what an engine imports.
_MODULES = ("vllm.entrypoints.llm", "vllm.v1.worker.cpu_worker", "vllm.model_executor.models.qwen3_next")


def in_fork(answer: Callable[[], Any], seconds: int) -> tuple[str, int]:
    """The JSON of what `answer` returns in a fork of this process, or "", and the fork's exit status."""
    with tempfile.TemporaryFile("w+") as file:
        if (child := os.fork()) == 0:
            status = 1
            try:
                signal.alarm(seconds)
                file.write(json.dumps(answer()))
                file.flush()
                status = 0
            except BaseException:  # noqa: BLE001 - the log says it
                traceback.print_exc()
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what is left of its session, if it began one
        file.seek(0)
        return file.read(), os.waitstatus_to_exitcode(status)


class Forks:
    COMMANDS: ClassVar[tuple[str, ...]] = ("run",)

    def __init__(self, arguments: dict[str, Any], *_: Any) -> None:
        for name in _MODULES:
            importlib.import_module(name)
        self._module = importlib.import_module(f"tests.support.{arguments['module']}")
        gc.collect()
        gc.freeze()

    def run(self, job: Any, log: str, timeout_s: int) -> Any:
        text, status = in_fork(lambda: self._logged(job, log), timeout_s)
        if not text:
            raise RuntimeError(f"exit status {status}")
        return json.loads(text)

    def _logged(self, job: Any, log: str) -> Any:
        """Run the job in a session of its own; all that it prints goes to the log."""
        os.setsid()
        for path, descriptors in ((os.devnull, (0,)), (log, (1, 2))):
            opened = os.open(path, os.O_RDWR | os.O_CREAT)
            for descriptor in descriptors:
                os.dup2(opened, descriptor)
        try:
            return self._module.run(job)
        finally:
            sys.stdout.flush()


if __name__ == "__main__":
    main(Forks)
