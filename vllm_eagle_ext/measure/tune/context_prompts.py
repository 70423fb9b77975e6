# SPDX-License-Identifier: Apache-2.0
"""Prompts of several lengths from the same texts."""

from __future__ import annotations

from collections.abc import Sequence


def with_context(texts: Sequence[str], tokens: Sequence[int], least: int) -> list[str]:
    """Put the texts that come before each one in front of it, until there are enough tokens.

    What is to be answered stays last. Texts of one list begin differently, so that no request finds the
    prefix of another in the cache.

    Args:
        tokens: of each text.
        least: tokens that each result has at least, by that count.
    """
    return [_extended(texts, tokens, place, least) for place in range(len(texts))]


def _extended(texts: Sequence[str], tokens: Sequence[int], place: int, least: int) -> str:
    parts, have = [texts[place]], tokens[place]
    while have < least:
        place = (place - 1) % len(texts)
        parts.append(texts[place])
        have += max(1, tokens[place])
    return "\n\n".join(reversed(parts))
