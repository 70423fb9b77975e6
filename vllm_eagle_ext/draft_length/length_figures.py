# SPDX-License-Identifier: Apache-2.0
"""Writes what a scheduler chooses to where the process that answers /metrics reads it."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_eagle_ext.draft_length.controller import DraftLengthController
from vllm_eagle_ext.shared_figures import inherited_figures

EVERY = 16  # steps


class LengthFigures:
    """Counts steps per length; writes K in force, the gain of drafting, and these counts."""

    def __init__(self, menu: Sequence[int]) -> None:
        self._steps = dict.fromkeys(menu, 0)
        self._shared = inherited_figures(2 + len(menu))
        self._until = 0

    def count(self, length: int) -> None:
        self._steps[length] += 1

    def write(self, controller: DraftLengthController) -> None:
        """Write once in EVERY calls: metrics are scraped every few seconds."""
        if self._shared is None:
            return
        self._until -= 1
        if self._until < 0:
            self._until = EVERY - 1
            self._shared.set((controller.in_force, controller.draft_gain(), *self._steps.values()))
