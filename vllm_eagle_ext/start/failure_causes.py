# SPDX-License-Identifier: Apache-2.0
"""Finds the line that says why an engine failed, with the standard library only.

An engine is several processes. The one that fails tells why; the others end with an error that only
points at it, or with one that it led to.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_ERROR = re.compile(r"\b\w*(?:Error|Exception)\b: .+|\bValue error, .+")  # the second: pydantic's
_POINTERS = (  # of messages whose cause stands elsewhere
    "Engine core initialization failed",
    "during engine core initialization",
    "EngineCore encountered an issue",
    "WorkerProc initialization failed",
    "check the stack trace above",
    "Ray workers have not started successfully",
    "died with exit code",
    "died unexpectedly",
    "validation error for",
    "validation errors for",
)
# By SIGKILL, as vLLM and `measure` tell the ends of their processes. None: vLLM asked too early.
_KILLED = re.compile(
    r"proc(?:ess)? (\S+) .*exit code:? (?:-9|None)\b|'([^']+)': -9\b|\bexit status -9\b"
)
_LOGGED = re.compile(r"\((?P<process>[^()]* pid=\d+)\) ERROR ")  # vLLM's prefix of a line


def is_pointer(line: str) -> bool:
    """Find out whether the line says only that there is an error."""
    return any(text in line for text in _POINTERS)


def telling(line: str) -> str | None:
    """Give what the line names of an error, if it is more than that there is one."""
    found = _ERROR.search(line)
    return found.group() if found and not is_pointer(line) else None


def earliest(said: Sequence[tuple[str, str]]) -> int | None:
    """Find which of them is the cause; None where none tells.

    Args:
        said: process and error, in the order of time.

    A process's last error is the one that ended it, unless that points elsewhere. Of several such, the
    first led to the others.
    """
    last = {process: place for place, (process, _) in enumerate(said)}
    return min((place for place in last.values() if not is_pointer(said[place][1])), default=None)


def cause_of(error: str, log: Sequence[str]) -> tuple[str, int]:
    """Find what tells the cause, and the number of log lines up to it.

    It is the error itself, or where that only points elsewhere the line of the log that does not. A
    process that was killed comes before both: all others follow from it.
    """
    for number, line in enumerate([*log, error], start=1):
        dead = _KILLED.search(line)
        if dead and not ("None" in line and any("(Worker" in one and " ERROR " in one for one in log)):
            name = dead[1] or dead[2] or "its process"
            said = f"Error: {name} was killed (SIGKILL), as the kernel does where memory runs out"
            return said, min(number, len(log))
    if telling(error) is None:
        logged = [
            (at, match["process"], line)
            for at, line in enumerate(log)
            if (match := _LOGGED.search(line)) and _ERROR.search(line)
        ]
        first = earliest([(process, line) for _, process, line in logged])
        place = None if first is None else logged[first][0]
        if place is None:  # nothing that a process of vLLM's logged as an error
            place = next((at for at in range(len(log) - 1, -1, -1) if telling(log[at])), None)
        if place is not None and (found := telling(log[place])):
            return found, place + 1
    return error, len(log)
