# SPDX-License-Identifier: Apache-2.0
"""Makes texts fit to be shown: what a stranger's file says may act on a terminal, or begin a line.

Every error, finding, table, command and line of the log goes through here.
"""

from __future__ import annotations

import os
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
    """Join words to a command that can be pasted, and that shows every letter of them."""
    return " ".join(shlex.quote(word) if word.isprintable() else _escaped(word) for word in words)


def _escaped(word: str) -> str:
    """Quote a word for bash and zsh, which turn the escapes back into its bytes."""
    letters = (
        f"\\{letter}"
        if letter in "\\'"
        else letter
        if letter.isprintable()
        else "".join(f"\\x{byte:02x}" for byte in _bytes(letter))
        for letter in word
    )
    return f"$'{''.join(letters)}'"


def _bytes(letter: str) -> bytes:
    try:
        return os.fsencode(letter)
    except UnicodeEncodeError:  # a lone surrogate that stands for no byte of a file's name
        return letter.encode(errors="surrogatepass")
