"""Ends what tests start when they end, whatever ends them.

A keeper in a session of its own waits for the end of the process that called `end_children_with_us`, and
then kills all that carries the mark: engine cores, workers, and what put itself into another session.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from pathlib import Path

import psutil

MARK = "EAGLE_EXT_STARTED_BY"  # in the environment of all that a process of the tests starts
_ROUNDS = 10  # some of what is killed may have started others meanwhile
_ROOT = Path(__file__).resolve().parents[2]


def end_children_with_us() -> dict[str, str]:
    """Mark all that this process starts from now on, and let a keeper end it with this process.

    Returns:
        What is added to the environment.
    """
    if not os.environ.get(MARK, "").startswith(f"{os.getpid()}-"):
        os.environ[MARK] = f"{os.getpid()}-{uuid.uuid4().hex}"
        os.environ["SPT_NOENV"] = "1"  # a process that renames itself writes over its mark otherwise
        _start_keeper(os.environ[MARK])
    return {name: os.environ[name] for name in (MARK, "SPT_NOENV")}


def _start_keeper(mark: str) -> None:
    subprocess.Popen(
        [sys.executable, "-m", "tests.support.lifetime", str(os.getpid()), mark],
        cwd=_ROOT,
        env={},  # a keeper has no mark, also not that of the process that started this one
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main() -> None:
    from tests.support.processes import kill, marked

    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(sys.argv[1])).wait()
    for _ in range(_ROUNDS):
        if not (left := marked(MARK, sys.argv[2])):
            return
        kill(left)


if __name__ == "__main__":
    main()
