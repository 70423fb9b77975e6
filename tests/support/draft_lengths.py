"""Engines with `draft_length: "auto"`, and the lengths that their steps were given.

A batch whose name begins with `cycled` is given a random length of the menu in each step, whatever was
measured: what a controller may do at worst. One that begins with `phased` keeps to a length for some
steps, and half of the time to none at all; one that begins with `in turn` is given all lengths one after
the other. Others get the controller's own choice.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tests.support.batches import TIMEOUT_S, Engine
from tests.support.engine import IN_PROCESS, EngineFailedError, engine_environment, run_child

CYCLED, PHASED, IN_TURN = "cycled", "phased", "in turn"


def auto(menu: Sequence[int]) -> dict[str, Any]:
    return {"draft_length": "auto", "draft_lengths": list(menu)}


class Watched:
    """Hands everything to a controller, notes the lengths, and chooses them as a batch's name says."""

    def __init__(self, controller: Any, batch: str) -> None:
        self._controller = controller
        self._draw = random.Random(0)
        self._rule = next((r for r in (CYCLED, PHASED, IN_TURN) if batch.startswith(r)), None)
        self._left = 0  # steps of the present phase
        self.lengths: list[int] = []

    def next_length(self, requests: int, context: int) -> int:
        length = self._controller.next_length(requests, context)
        menu = self._controller.menu
        if self._rule == CYCLED:
            length = self._draw.choice(menu)
        elif self._rule == PHASED:
            length = self._in_phase()
        elif self._rule == IN_TURN:
            length = menu[len(self.lengths) % len(menu)]
        self.lengths.append(length)
        return length

    def _in_phase(self) -> int:
        if not self._left:
            self._left = self._draw.randint(1, 9)
            self._length = self._draw.choice([0, self._draw.choice(self._controller.menu)])
        self._left -= 1
        return self._length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)


def run_auto(engines: Sequence[Engine], runner: str = "v1") -> tuple[dict[str, Any], str]:
    """Engine -> batch -> result, as `run_engines` has them, with `lengths`; and what was printed.

    Raises:
        EngineFailedError: the process ended without results, or an engine failed.
    """
    results, log = run_child(
        "draft_lengths_process",
        [asdict(engine) for engine in engines],
        environment=engine_environment(runner) | IN_PROCESS,
        timeout_s=TIMEOUT_S,
    )
    for name, found in results.items():
        if "error" in found:
            raise EngineFailedError(f"{log[-3000:]}\n{name}: {found['trace']}")
    return results, log
