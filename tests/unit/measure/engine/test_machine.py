"""Work of others while something is measured."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from vllm_eagle_ext.measure.engine.machine import OtherWork, cores, used_s

SPIN = "import time\nend = time.time() + 60\nwhile time.time() < end: pass"
WORKED_S = 0.4


@contextmanager
def spinning(start: list[str]) -> Iterator[psutil.Process]:
    """A process that works, made by `start`, which prints its number."""
    number = subprocess.run(start, stdout=subprocess.PIPE, text=True, check=True).stdout
    process = psutil.Process(int(number))
    try:
        yield process
    finally:
        process.kill()


def wait_for_work(process: psutil.Process) -> None:
    before = process.cpu_times().user
    while process.cpu_times().user < before + WORKED_S:
        time.sleep(0.1)


def test_a_strangers_work_is_counted():
    """Its parent has ended, so that nobody's child it is."""
    command = ["sh", "-c", f'{sys.executable} -c "$0" >/dev/null & echo $!', SPIN]
    with spinning(command) as stranger:
        before = used_s()
        began = time.perf_counter()
        with OtherWork().during() as others:
            wait_for_work(stranger)
        took = time.perf_counter() - began
    assert used_s() - before < WORKED_S / 2
    assert others.cores > 0.8 * WORKED_S / took


def test_an_engines_work_and_its_workers_is_not():
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {SPIN!r}])"
    engine = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        while not (workers := psutil.Process(engine.pid).children()):
            time.sleep(0.1)
        before = used_s()
        wait_for_work(workers[0])
        assert used_s() - before > 0.8 * WORKED_S
    finally:
        for process in [*psutil.Process(engine.pid).children(), engine]:
            process.kill()
        engine.wait()


def test_idle_time_is_nobodys():
    with OtherWork().during() as others:
        time.sleep(0.5)
    assert 0 <= others.cores <= 1.2 * cores()
