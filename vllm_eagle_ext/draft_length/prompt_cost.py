# SPDX-License-Identifier: Apache-2.0
"""Estimates what a prompt's token adds to a step, so that steps with prompts time the draft, too.

A busy server has prompts in most steps. Two steps of one bucket and one K differ by their prompts alone:
the difference of their times over that of their prompt tokens is one slope. The weighted median of the
slopes (Sen 1968; weights: the tokens between the two, since noise of a slope falls with them) is the
estimate; it holds where no step is free of prompts. Where all steps have equally many prompt tokens
there is no slope, and their part stays in every length's time alike.
"""

from __future__ import annotations

from collections import deque

from vllm_eagle_ext.draft_length.load_buckets import Key

SLOPES = 31
_LEAST_APART = 0.25  # of the larger number of prompt tokens
_LEAST_LEFT = 0.05  # of a step's time, what is its decodes' at least


class PromptCost:
    """Holds the last slopes and their weighted median, in seconds per prompt token."""

    def __init__(self) -> None:
        self.seconds_per_token = 0.0
        self._slopes: deque[tuple[float, int]] = deque(maxlen=SLOPES)
        self._last: tuple[Key, int, int, float] | None = None

    def observe(self, key: Key, length: int, prompt_tokens: int, seconds: float) -> None:
        """Take a step's time; it is compared with the last one of the same bucket and length."""
        last, self._last = self._last, (key, length, prompt_tokens, seconds)
        if last is None or last[:2] != (key, length):
            return
        apart = prompt_tokens - last[2]
        if abs(apart) > _LEAST_APART * max(prompt_tokens, last[2]):
            self._slopes.append(((seconds - last[3]) / apart, abs(apart)))
            self.seconds_per_token = max(_weighted_median(self._slopes), 0.0)

    def without_prompts(self, prompt_tokens: int, seconds: float) -> float:
        """Return the seconds that a step would have taken without its prompts."""
        return max(seconds - self.seconds_per_token * prompt_tokens, _LEAST_LEFT * seconds)


def _weighted_median(values: deque[tuple[float, int]]) -> float:
    half, passed = sum(weight for _, weight in values) / 2, 0
    for value, weight in sorted(values):
        passed += weight
        if passed >= half:
            return value
    return 0.0
