"""Starts `vllm serve` on the loopback interface, waits until it answers, and stops it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import httpx

from tests.support.engine import ROOT, TINY, engine_environment

START_TIMEOUT_S = 300
STOP_TIMEOUT_S = 60
POLL_S = 0.2


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def recipe(target: str, **variables: object) -> str:
    """The last command of a target of the Makefile, which `make` would run after the set-up."""
    given = [f"{name}={value}" for name, value in variables.items()]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "--dry-run", "--no-print-directory", target, *given]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.replace("\\\n", " ").splitlines()[-1]


def assert_first_log(text: str) -> None:
    """A user's first log ends in a server, and has no tracebacks and no missing library on the way."""
    assert "Application startup complete" in text
    before = text.partition("Application startup complete")[0]
    assert "Traceback" not in before
    assert "Exception ignored" not in before
    assert "without Intel OpenMP in LD_PRELOAD" not in before


def wait_until_ready(
    process: subprocess.Popen[bytes],
    root_url: str,
    timeout_s: float = START_TIMEOUT_S,
    page: str = "health",
) -> None:
    """Poll a page, that of a `vllm serve`'s health, until it answers.

    Raises:
        RuntimeError: the process ended.
        TimeoutError: no answer in time.
    """
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}")
        try:
            if httpx.get(f"{root_url}/{page}", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        pause.wait(POLL_S)
    raise TimeoutError(f"{root_url} was not ready after {timeout_s} s")


class Server:
    """Context manager. `url` is the OpenAI base URL; `log` fills while the server runs."""

    def __init__(
        self,
        *,
        draft: Path,
        k: int,
        log: Path,
        arguments: Sequence[str] = (),
        target: Path = TINY / "target",
        method: str = "eagle3",
        environment: Mapping[str, str] | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self.start_timeout_s = start_timeout_s
        self.environment = engine_environment("v1") | dict(environment or {})
        self.port = free_port()
        self.log = log
        self.root_url = f"http://127.0.0.1:{self.port}"
        self.url = f"{self.root_url}/v1"
        speculative = {"method": method, "model": str(draft), "num_speculative_tokens": k}
        self.command = [
            str(Path(sys.executable).parent / "vllm"),
            "serve",
            str(target),
            "--host=127.0.0.1",
            f"--port={self.port}",
            "--served-model-name=tiny",
            "--max-model-len=1024",
            "--gpu-memory-utilization=0.3",
            "--enforce-eager",
            "--speculative-config",
            json.dumps(speculative),
            *arguments,
        ]

    def __enter__(self) -> Server:
        self._stream = self.log.open("w")
        self.process = subprocess.Popen(
            self.command,
            cwd=ROOT,
            env=self.environment,
            stdout=self._stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_until_ready(self.process, self.root_url, self.start_timeout_s)
        except BaseException as error:
            self.stop()
            error.add_note(self.log.read_text()[-4000:])
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """SIGINT, as Ctrl-C; the whole process group is killed only if it does not end by itself."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self._stream.close()
