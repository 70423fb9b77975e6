# SPDX-License-Identifier: Apache-2.0
"""Logs when drafting turns off or on for a load, with the figures that decided."""

from __future__ import annotations

from vllm_eagle_ext.draft_length.controller import Change
from vllm_eagle_ext.draft_length.load_buckets import ranges_of
from vllm_eagle_ext.log import get_logger

logger = get_logger(__name__)

APART_S = 60.0  # between two lines on one bucket of load


class SwitchLog:
    """Remembers when it spoke of each bucket last; of which there are few."""

    def __init__(self) -> None:
        self._spoken: dict[tuple[int, int], float] = {}

    def record(self, change: Change, now: float) -> None:
        """Log a change to or from no draft.

        Args:
            now: seconds of a clock that does not go back.
        """
        if bool(change.before) == bool(change.after):
            return
        spoken = self._spoken.get(change.bucket)
        if spoken is None or now - spoken >= APART_S:
            self._spoken[change.bucket] = now
            logger.info(switch_line(change))


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
