# SPDX-License-Identifier: Apache-2.0
"""Matches names against regular expressions that a stranger wrote, in bounded time.

`regex` is what vLLM itself matches with, and can be stopped, which Python's `re` cannot.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

import regex

MOST_PATTERNS = 1000  # a draft has some 450 modules at most
_MOST_CHARACTERS = 1000
# Of processor time, for all patterns and names of a draft. Real ones take some ms; the most that a
# draft of 64 layers can ask for took 0.5 on a slow CPU.
_SECONDS = 1.5
_SHOWN = 80  # characters of a pattern in a message


class PatternError(ValueError):
    """Says which pattern is of no use, and why."""

    def __init__(self, pattern: str, why: str = "") -> None:
        self.pattern, self.why = pattern, why
        super().__init__(repr(pattern[:_SHOWN]) + why)


def first_matches(patterns: tuple[str, ...], names: tuple[str, ...]) -> Mapping[str, str | None]:
    """Return, for each name, the first pattern that fits it from its beginning.

    Raises:
        PatternError: one that cannot be read, or too slow ones.
        ValueError: too many.
    """
    found = _first_matches(patterns, names)
    if isinstance(found, ValueError):
        raise found
    return found


@lru_cache(maxsize=16)  # also of what failed, which takes longest
def _first_matches(
    patterns: tuple[str, ...], names: tuple[str, ...]
) -> Mapping[str, str | None] | ValueError:
    if len(patterns) > MOST_PATTERNS:
        return ValueError(f"{len(patterns)} patterns, more than the {MOST_PATTERNS} that are read")
    end = time.process_time() + _SECONDS
    try:
        compiled = [_compile(pattern, end) for pattern in patterns]
        found = {name: next((one for one in compiled if _fits(one, name, end)), None) for name in names}
    except PatternError as error:
        return error
    return MappingProxyType({name: one and one.pattern for name, one in found.items()})


def _compile(pattern: str, end: float) -> regex.Pattern[str]:
    if len(pattern) > _MOST_CHARACTERS:
        raise PatternError(pattern, f", longer than {_MOST_CHARACTERS} characters")
    if time.process_time() > end:
        raise PatternError(pattern, ", which takes too long to read")
    try:
        return regex.compile(pattern)
    except Exception:  # noqa: BLE001 - RecursionError, OverflowError, regex.error and more
        raise PatternError(pattern) from None


def _fits(pattern: regex.Pattern[str], name: str, end: float) -> bool:
    try:
        return pattern.match(name, timeout=max(end - time.process_time(), 1e-6)) is not None
    except (TimeoutError, MemoryError, RecursionError):
        raise PatternError(pattern.pattern, ", which takes too long to match") from None
