# SPDX-License-Identifier: Apache-2.0
"""Logs when drafting turns off or on for a load, with the figures that decided."""

from __future__ import annotations

import math

from vllm_eagle_ext.draft_length.controller import Change
from vllm_eagle_ext.draft_length.load_buckets import Key, ranges_of
from vllm_eagle_ext.log import get_logger

logger = get_logger(__name__)

APART_S = 60.0  # between two lines on one bucket of load


class SwitchLog:
    """Remembers what was said last of each bucket, of which there are few, and what is due."""

    def __init__(self) -> None:
        self._said: dict[Key, tuple[float, bool]] = {}  # when, and whether drafting is on
        self._due: dict[Key, Change] = {}

    def record(self, change: Change) -> None:
        """Take a change, in place of an earlier one of its bucket that was not said."""
        self._due[change.bucket] = change

    def speak(self, now: float) -> None:
        """Log what is due: not sooner than a minute after the last line on a bucket, and if it is news.

        Args:
            now: seconds of a clock that does not go back.
        """
        for bucket, change in list(self._due.items()):
            said_at, is_on = self._said.get(bucket, (-math.inf, None))
            if is_on == bool(change.after):
                del self._due[bucket]
            elif now - said_at >= APART_S:
                self._said[bucket] = now, bool(change.after)
                logger.info(switch_line(self._due.pop(bucket)))


def switch_line(change: Change) -> str:
    """Make one line: the load, the choice, and per length milliseconds of a step and tokens from it."""
    requests, context = (f"{least} to {most}" for least, most in ranges_of(change.bucket))
    figures = "; ".join(
        f"K={f.length}: {'not timed' if f.seconds is None else f'{f.seconds * 1e3:.3g} ms'}, "
        f"{f.tokens:.2f} tokens per request"
        for f in change.figures
    )
    state = "off" if change.after == 0 else f"on, K={change.after},"
    return (
        f"Drafting is {state} for {requests} requests with {context} tokens of context, before K="
        f"{change.before}. Decode steps: {figures}."
    )
