# SPDX-License-Identifier: Apache-2.0
"""Writes what a scheduler chooses to where the process that answers /metrics reads it."""

from __future__ import annotations

from vllm_eagle_ext.draft_length.controller import DraftLengthController
from vllm_eagle_ext.shared_figures import inherited_figures

EVERY = 16  # steps


class LengthFigures:
    """Counts steps per length and drafted tokens; writes these, K in force, the gain of drafting
    and how many lengths were not timed yet."""

    def __init__(self, controller: DraftLengthController) -> None:
        self._steps = dict.fromkeys(controller.menu, 0)
        self._drafted = 0
        self._shared = inherited_figures(4 + len(self._steps))
        self._until = 0
        self.write(controller)

    def count(self, length: int, requests: int) -> None:
        """Count a step that drafts `length` tokens for each of `requests`."""
        self._steps[length] += 1
        self._drafted += length * requests

    def write(self, controller: DraftLengthController) -> None:
        """Write once in EVERY calls: metrics are scraped every few seconds."""
        if self._shared is None:
            return
        self._until -= 1
        if self._until < 0:
            self._until = EVERY - 1
            chosen = (controller.in_force, controller.draft_gain(), controller.untimed())
            self._shared.set((*chosen, self._drafted, *self._steps.values()))
