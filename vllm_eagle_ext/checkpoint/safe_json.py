# SPDX-License-Identifier: Apache-2.0
"""JSON that a stranger wrote: what it costs to parse is bounded."""

from __future__ import annotations

import json
from typing import Any

_CONTAINERS = 2**18  # lists and objects; one takes some 100 bytes where the file spends 2
_DEPTH = 32  # of lists and objects in each other; real files have up to 10
_DIGITS = 20  # of an integer; Python's arithmetic is exact, at any price


def parse_json(raw: bytes, *, containers: int = _CONTAINERS, unique_keys: bool = False) -> Any:
    """Parse bytes whose number the caller has bounded.

    Raises:
        ValueError: not UTF-8, no JSON, or beyond what a real file has.
    """
    if raw.count(b"[") + raw.count(b"{") > containers:
        raise ValueError(f"it has more than {containers} lists and objects")
    try:
        found = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_unique if unique_keys else None, parse_int=_integer
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _is_deeper(found):
        raise ValueError("it is nested too deeply")
    return found


def _is_deeper(found: Any) -> bool:
    """Tell, level by level, whether JSON is too deep: a recursion would end as the parser's does."""
    level = [found]
    for _ in range(_DEPTH + 1):
        level = [child for node in level for child in _children(node) if isinstance(child, dict | list)]
    return bool(level)


def _children(node: Any) -> Any:
    return node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has the same key twice")
    return found


def _integer(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError(f"it has an integer of {len(text)} digits")
    return int(text)
