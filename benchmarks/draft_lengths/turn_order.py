# SPDX-License-Identifier: Apache-2.0
"""Who decodes a load, in which order: no draft, each K, "auto", and one K again.

K again is held by the engine of "auto", beside the engine that holds every K: their ratio is what an
"auto" would show that always chose this K.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.draft_lengths.lengths_result import AUTO
from vllm_eagle_ext.measure.tune.results import NONE, ServedConfig


class Turn(NamedTuple):
    served: ServedConfig
    again: bool = False

    @property
    def engine(self) -> ServedConfig:
        return AUTO if self.again else self.served

    @property
    def draft_length(self) -> int | None:
        """K that is held; None where the engine has its own."""
        return self.served.k if self.served.name == "held" else None


def turns_of(held: Sequence[ServedConfig], again: ServedConfig, number: int) -> list[Turn]:
    """Give the order of turn `number` at a load.

    All move on by one place from each turn to the next. Every second turn runs backwards, and when all
    have moved around, the other turns do. No draft and K again stay beside "auto", on either side.
    """
    together = [Turn(NONE), Turn(AUTO), Turn(again, again=True)]
    blocks = [together, *([Turn(one)] for one in held)]
    times, first = divmod(number, len(blocks))
    found = [turn for block in (*blocks[first:], *blocks[:first]) for turn in block]
    return found[::-1] if (first + times) % 2 else found
