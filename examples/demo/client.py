"""Starts an engine process, talks to it, and ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STOP_TIMEOUT_S = 30


class EngineClient:
    """Use as a context manager; entering waits until the engine is ready.

    Raises:
        SystemExit: the engine ended; says so with the end of its log.
    """

    def __init__(self, arguments: dict[str, Any], log: Path) -> None:
        self.arguments = arguments
        self.log = log

    def __enter__(self) -> EngineClient:
        environment = dict(os.environ)
        environment.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        environment.setdefault("VLLM_NO_USAGE_STATS", "1")
        self.stream = self.log.open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "examples.demo.engine", json.dumps(self.arguments)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stream,
            text=True,
            bufsize=1,
        )
        self._read()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()  # its loop ends, and vLLM shuts its children down
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.stream.close()

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            tail = "".join(self.log.read_text().splitlines(keepends=True)[-25:])
            raise SystemExit(f"{tail}\nThe engine ended; its whole log: {self.log}")
        return json.loads(line)
