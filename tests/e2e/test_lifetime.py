"""A server ends with the process that started it, also when nothing of that process can run any more."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.engine import ROOT, TINY
from tests.support.processes import part, takes_connections, tree, wait_for_end

pytestmark = [pytest.mark.e2e, pytest.mark.long]

STARTS_A_SERVER = f"""
import pathlib, sys, time
from tests.support.server import Server

draft = pathlib.Path({str(TINY)!r}, "postnorm")
with Server(draft=draft, k=4, log=pathlib.Path(sys.argv[1])) as server:
    print(server.process.pid, server.port, flush=True)
    time.sleep(600)
"""


def test_no_process_of_a_server_outlives_its_parent(tmp_path):
    command = [sys.executable, "-c", STARTS_A_SERVER, str(tmp_path / "server.log")]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE) as parent:
        try:
            root, port = map(int, parent.stdout.readline().split())
            processes = tree(root)
            assert {"server", "EngineCore"} <= {part(process) for process in processes}
        finally:
            parent.kill()
    assert wait_for_end(processes, 20) == []
    assert not takes_connections(port)
