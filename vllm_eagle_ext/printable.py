# SPDX-License-Identifier: Apache-2.0
"""Makes texts fit to be shown: what a stranger's file says may act on a terminal, or begin a line.

Every error, finding, table, command and line of the log goes through here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

_MOST_SHOWN = 2000  # characters of a value that someone else wrote
_MOST_IN_JSON = 2**15


def printable(text: str) -> str:
    """Escape control characters, line ends, marks that turn or hide text, and what has no bytes."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text
    )


def shown(text: str) -> str:
    """Return a text, printable, and cut where no one would read on."""
    whole = len(text)
    return printable(text if whole <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} .. ({whole} characters)")


def bounded(value: Any) -> Any:
    """Return a value for JSON as it is, or a long one as a text that is cut."""
    text = value if isinstance(value, str) else repr(value)
    return value if len(text) <= _MOST_IN_JSON else shown(text)


def shell_line(words: Iterable[str]) -> str:
    """Join words to a command that can be pasted, if all letters of it can be shown."""
    return shlex.join(map(printable, words))
