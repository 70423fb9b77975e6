# SPDX-License-Identifier: Apache-2.0
"""The lengths that a controller may choose from, and how vLLM is told of them.

vLLM captures CUDA graphs for the lengths that its schedule by batch size mentions, and its scheduler
looks the length up there. The schedule made here mentions each length of the menu once; which one a step
gets is then decided by the controller alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Schedule = list[tuple[int, int, int]]  # first and last number of requests, K


def default_menu(k: int) -> tuple[int, ...]:
    """Return 0, 1, K/2 and K."""
    return tuple(sorted({0, 1, k // 2, k}))


def complete_menu(asked: Iterable[int] | None, k: int) -> tuple[int, ...]:
    """Return the lengths to choose from, ascending, without repetitions.

    Args:
        asked: the user's lengths; None: the default.
        k: the engine's num_speculative_tokens.

    Raises:
        ValueError: a length outside 0..K, K missing, or nothing to choose.
    """
    menu = default_menu(k) if asked is None else tuple(sorted(set(asked)))
    if not menu or menu[0] < 0 or menu[-1] != k:
        raise ValueError(f"lengths from 0 to {k}, with {k} among them")
    if len(menu) < 2:
        raise ValueError(f"{k} and at least one shorter length")
    return menu


def schedule_of(menu: Sequence[int]) -> Schedule:
    """Mention each length once: the n-th for n requests, the longest for all above."""
    return [(n, n, k) for n, k in enumerate(menu, start=1)]


def menu_of(schedule: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Read the lengths from a schedule, ascending."""
    return tuple(sorted({int(k) for _, _, k in schedule}))
