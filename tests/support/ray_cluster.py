"""A Ray cluster of one's own: nodes on loopback addresses, ended by process id."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import psutil

from tests.support import processes
from tests.support.engine import ROOT
from tests.support.lifetime import end_children_with_us
from tests.support.server import free_port

RAY_CPU = Path(__file__).parent / "ray_cpu"
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30
_MARK = "EAGLE_EXT_RAY_CLUSTER"  # in the environment of all that Ray starts, however it detaches itself
# 127.0.0.1 stays what it is, and what listens there listens nowhere else. Of two nodes none may have it:
# Ray then takes 127.0.0.1 for an address that others reach, and listens everywhere; hence the token.
_LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}


@dataclass(frozen=True)
class Node:
    gpus: int = 2  # logical: Ray hands out numbers
    address: str = "127.0.0.1"
    environment: Mapping[str, str] = field(default_factory=dict)  # of this node's workers
    start: Sequence[str] = ()  # `ray start ..` in place of the usual one


def ray_path(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment whose vLLM takes Ray's GPUs for its devices, with CPUs behind them."""
    path = f"{RAY_CPU}{os.pathsep}{environment.get('PYTHONPATH', ROOT)}"
    return {**environment, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def marked(token: str) -> list[psutil.Process]:
    """All that one cluster started, and drivers that were given its environment."""
    return processes.marked(_MARK, token)


class RayCluster:
    """Context manager. `environment` is what a driver needs beside its own; first node: the head.

    Nothing of it outlives the block: what is left after an orderly end is killed by process id.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        nodes: Sequence[Node] = (Node(),),
        *,
        port: int | None = None,
    ) -> None:
        self.token = uuid.uuid4().hex
        self.port = port or free_port()
        self.nodes = nodes
        self._variables = {
            **_QUIET,
            **(_LOOPBACK_ONLY if len(nodes) == 1 else {}),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            _MARK: self.token,
        }
        self._environment = {**environment, **end_children_with_us(), **self._variables}
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        return f"{self.nodes[0].address}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return {"RAY_ADDRESS": self.address, "VLLM_HOST_IP": self.nodes[0].address, **self._variables}

    def __enter__(self) -> RayCluster:
        # Ray's sockets lie below it, and their paths may have 107 characters.
        self._folder = tempfile.mkdtemp(prefix="ray")
        try:
            for number, node in enumerate(self.nodes):
                try:
                    self._start(number, node)
                except RuntimeError:  # Ray gives a node 30 s, and one lost call takes all of them
                    self._end([p for p in marked(self.token) if self._belongs(p, number)])
                    self._start(number, node)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _command(self, number: int, node: Node) -> list[str]:
        is_head = number == 0
        role = ["--head", f"--port={self.port}"] if is_head else [f"--address={self.address}"]
        usual = ["ray", "start", *role, f"--node-ip-address={node.address}", f"--num-gpus={node.gpus}"]
        of_head = ["--include-dashboard=false", f"--ray-client-server-port={free_port()}"]
        command = [
            *(node.start or usual),
            *(of_head if is_head else []),
            "--num-cpus=2",
            f"--object-store-memory={128 * 2**20}",
            "--disable-usage-stats",
            f"--temp-dir={self._folder}/{number}",
            "--block",
        ]
        return [str(Path(sys.executable).parent / command[0]), *command[1:]]

    def _start(self, number: int, node: Node) -> None:
        log = Path(self._folder, f"node{number}.log")
        with log.open("w") as stream:
            process = subprocess.Popen(
                self._command(number, node),
                cwd=ROOT,  # relative paths of models are the workers' too
                env={**self._environment, "VLLM_HOST_IP": node.address, **node.environment},
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        deadline = time.monotonic() + START_TIMEOUT_S
        while "Ray runtime started" not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Ray's node {number} did not start:\n{log.read_text()[-4000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        own = os.getpid()
        for process in reversed(self._started):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)  # `ray start --block` ends its node's processes
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
        left = [process for process in marked(self.token) if process.pid != own]
        self._end(left)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _belongs(self, process: psutil.Process, number: int) -> bool:
        with contextlib.suppress(psutil.Error):
            return any(f"{self._folder}/{number}" in word for word in process.cmdline())
        return False

    def _end(self, left: list[psutil.Process]) -> None:
        if alive := processes.kill(left, STOP_TIMEOUT_S):
            raise RuntimeError(f"of Ray there is still {alive}")
