# SPDX-License-Identifier: Apache-2.0
"""Tells the cause of a failed start last and on one line, from the process that the user started.

What ends that process only points at the cause, which stands a hundred lines above in the traceback of
a worker. So every process of vLLM's notes its errors in one file, whose path its children inherit in
the environment, and the first process reads it when an exception that nobody caught ends it. Workers
that Ray starts inherit nothing: their errors come back through Ray to a process that does.

The file lies in memory and has no name in any folder: nobody else can put one in its place, and it is
gone with the process, however that ends. Linux has such files; elsewhere nothing is noted.

Without a draft, and where the exception is caught, nothing is seen of this. None of it may fail a start.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import multiprocessing
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from vllm_eagle_ext.errors import EagleExtError
from vllm_eagle_ext.printable import printable

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
    error = _ERROR.search(line)
    return error.group() if error and not is_pointer(line) else None


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
        if dead and not (
            "None" in line and any("(Worker" in each and " ERROR " in each for each in log)
        ):
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
        if place is not None and (words := telling(log[place])):
            return words, place + 1
    return error, len(log)


NOTES = "EAGLE_EXT_NOTES"  # environment variable; vLLM warns of unknown ones that begin with VLLM_
_MOST_BYTES, _MOST_CHARACTERS = 1 << 16, 4000
_NAME = "vllm-eagle-ext"
_RUNNING = "EngineCore encountered an issue"  # vLLM's EngineDeadError: it had started
_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def watch() -> None:
    """Watch over a start, in the process that the user started, when an engine is being configured.

    It does nothing in vLLM's own children, which configure engines too, nor where no file can be made.
    """
    if multiprocessing.parent_process() is not None:
        return
    with contextlib.suppress(Exception):
        os.environ[NOTES] = _notes(os.getpid())  # whatever became of the environment since
        _file().write_text("")
        join()


@functools.lru_cache(maxsize=1)
def _notes(owner: int) -> str:
    """Make the file of a process, once, and return its path for the process and its children."""
    descriptor = os.memfd_create(_NAME)
    os.fchmod(descriptor, 0o600)
    sys.excepthook = functools.partial(_tell, sys.excepthook, owner)
    return f"/proc/{owner}/fd/{descriptor}"


def _file() -> Path:
    """Return the path of the notes.

    Raises:
        OSError: they are gone, and another file may have their place.
    """
    path = Path(os.environ[NOTES])
    if not os.readlink(path).startswith(f"/memfd:{_NAME} "):
        raise FileNotFoundError(path)
    return path


def join() -> None:
    """Note the errors of this process, if the first process of vLLM's watches. Idempotent."""
    factory = logging.getLogRecordFactory()
    if NOTES in os.environ and not isinstance(factory, _Noting):
        logging.setLogRecordFactory(_Noting(factory))


class _Noting:
    """Makes log records, and notes errors.

    vLLM configures logging anew in each child, which removes handlers, but not the factory.
    """

    def __init__(self, factory: Callable[..., logging.LogRecord]) -> None:
        self.factory = factory

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self.factory(*args, **kwargs)
        with contextlib.suppress(Exception):  # logging goes on whatever becomes of the note
            if record.levelno >= logging.ERROR and record.exc_info and record.exc_info[1]:
                _note(record.exc_info[1])
        return record


def _note(error: BaseException) -> None:
    path = _file()
    full = path.stat().st_size > _MOST_BYTES  # of errors that an engine outlived
    with path.open("w" if full else "a") as file:  # one write, so that those of two do not mix
        file.write(json.dumps([f"{os.getpid()}", line_of(error)]) + "\n")


def line_of(error: BaseException) -> str:
    """Give an error's name and the line of its message that tells; without one, the code that raised."""
    said = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, SyntaxError):  # whose code Python shows first
        said = said[max(said.find(f"{type(error).__name__}: "), 0) :]
    name = said.splitlines()[0].partition(":")[0]
    message = said[len(name) :].removeprefix(":").strip()
    first, *others = [line.strip() for line in message.splitlines()] or [""]
    with contextlib.suppress(Exception):  # pydantic's message begins and ends with lines of no use
        mistake = error.errors()[0]  # type: ignore[attr-defined]
        first = ": ".join(filter(None, [".".join(map(str, mistake["loc"])), mistake["msg"]]))
    line = f"{name}: {first}" if first else name
    if is_pointer(first):
        line = next(filter(telling, others), line)
    elif not first and (frames := traceback.extract_tb(error.__traceback__)):
        line = f"{name}: {frames[-1].line} ({frames[-1].filename}:{frames[-1].lineno})"
    return line[:_MOST_CHARACTERS]


def _tell(before: _Hook, owner: int, *raised: Any) -> None:
    """Run as sys.excepthook: tell the cause after the hook that was there `before`."""
    before(*raised)
    with contextlib.suppress(Exception):
        if os.getpid() == owner and (line := last_line(raised[1], raised[2])):
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            sys.stderr.write(f"{printable(line)}\n")


def last_line(error: BaseException, trace: TracebackType | None) -> str | None:
    """Compose the line after the traceback of an exception that ends the process.

    Returns:
        None where the traceback's own last line says it, or where it is not of an engine's start.
    """
    own = line_of(error)
    if is_pointer(own):
        said = [(process, line) for process, line in map(json.loads, _file().read_text().splitlines())]
        if (place := earliest(said)) is None:
            return None
        cause = said[place][1]
    elif isinstance(error, EagleExtError) or any(
        frame.name == "create_engine_config" for frame in traceback.extract_tb(trace)
    ):
        cause = own
        if traceback.format_exception_only(error)[-1].strip().splitlines()[-1].strip() == own:
            return None
    else:
        return None
    happened = "ended" if _RUNNING in own else "did not start"
    _, mark, message = cause.partition("vllm-eagle-ext: ")  # of this package: it says all
    return f"vllm-eagle-ext: the engine {happened}: {message if mark else cause}"
