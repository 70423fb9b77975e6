"""What belongs to a running server: its processes and the sockets that they listen on."""

from __future__ import annotations

import contextlib
import socket
import time

import psutil

END_S = 60
_PARTS = ("EngineCore", "Worker", "resource_tracker")


def tree(root: int) -> list[psutil.Process]:
    parent = psutil.Process(root)
    return [parent, *parent.children(recursive=True)]


def part(process: psutil.Process) -> str:
    """A process of vLLM by what it is."""
    command = " ".join(process.cmdline())
    return next((name for name in _PARTS if name in command), "server")


def find(root: int, name: str) -> list[psutil.Process]:
    return [process for process in tree(root) if part(process) == name]


def listening(root: int) -> list[tuple[str, str]]:
    """Process and address of each socket that takes what comes; ports are the system's choice."""
    sockets = [
        (part(process), connection.laddr.ip)
        for process in tree(root)
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN or connection.type == socket.SOCK_DGRAM
    ]
    return sorted(sockets)


def marked(name: str, value: str) -> list[psutil.Process]:
    """Those that were started with this environment variable, however they detached themselves."""
    procs = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(name) == value and process.status() != psutil.STATUS_ZOMBIE:
                procs.append(process)
    return procs


def kill(processes: list[psutil.Process], seconds: float = END_S) -> list[psutil.Process]:
    """Those that are still alive after so long."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return wait_for_end(processes, seconds)


def wait_for_end(processes: list[psutil.Process], seconds: float = END_S) -> list[psutil.Process]:
    """Those that are still alive after so long."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def takes_connections(port: int, seconds: float = 5) -> bool:
    """Whether somebody still listens there after so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return False
        time.sleep(0.2)
    return True
