"""What tests start ends with them, whatever ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support.engine import ROOT
from tests.support.lifetime import MARK
from tests.support.processes import marked

# A server and its engine core, which starts workers: one detaches itself.
SERVER = "setsid sleep 300 & sh -c 'sleep 300 & wait' & wait"
PROCESSES = 4
STARTS_A_SERVER = f"""
import os, signal, subprocess, time
from tests.support.engine import engine_environment

signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs of the background ignore it
environment = engine_environment("v1")
subprocess.Popen(["sh", "-c", {SERVER!r}], env=environment, start_new_session=True)
print(environment[{MARK!r}], flush=True)
time.sleep(300)
"""


def wait_for(mark: str, count: int, seconds: float = 20) -> int:
    """The number of marked processes: `count`, or what there is after so long."""
    deadline = time.monotonic() + seconds
    while len(alive := marked(MARK, mark)) != count and time.monotonic() < deadline:
        time.sleep(0.05)
    return len(alive)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_server_ends_with_the_process_that_started_it(number):
    command = [sys.executable, "-c", STARTS_A_SERVER]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=-1, stderr=-1) as process:
        try:
            mark = process.stdout.readline().strip()
            assert wait_for(mark, PROCESSES) == PROCESSES
        finally:
            process.send_signal(number)
    assert wait_for(mark, 0) == 0


def test_all_that_these_tests_start_is_marked():
    assert os.environ[MARK].startswith(f"{os.getpid()}-")
