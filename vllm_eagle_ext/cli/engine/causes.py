# SPDX-License-Identifier: Apache-2.0
"""Which line of an engine's log says why it failed."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ERROR = re.compile(r"\b\w*(?:Error|Exception)\b: .+|\bValue error, .+")  # the second: pydantic's
_POINTERS = (  # messages whose cause is told elsewhere
    "Engine core initialization failed",
    "EngineCore encountered an issue",
    "validation error for",
)


def telling(line: str) -> str | None:
    """What it names of an error, if it is more than that there is one."""
    found = _ERROR.search(line)
    return found.group() if found and not any(text in line for text in _POINTERS) else None


def cause_of(error: str, log: Sequence[str]) -> tuple[str, int]:
    """The error itself, or where it only points elsewhere the last one of the log that does not; and
    the number of log lines up to it."""
    if telling(error) is None:
        for number in range(len(log), 0, -1):
            if found := telling(log[number - 1]):
                return found, number
    return error, len(log)
