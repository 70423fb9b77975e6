"""Drafts of two runs, compared where both drafted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm_eagle_ext.measure.reference.published import accepted_length


def placed(text: Sequence[int], drafts: Sequence[Sequence[int]]) -> dict[int, Sequence[int]]:
    """Drafts by the place of their first token in the text, which the accepted ones before them give."""
    at, places = 1, {}  # the first token comes from the prompt's own step
    for draft in drafts:
        places[at] = draft
        at += accepted_length(draft, text[at:]) + 1
    return places


def pairs(
    left: Mapping[str, Any], right: Mapping[str, Any]
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Results of `run_all`: each two drafts at the same place after the same text."""
    runs = (zip(run["tokens"], run["drafts"], strict=True) for run in (left, right))
    for one, other in zip(*runs, strict=True):
        assert len(one[0]) == len(other[0])
        same = accepted_length(one[0], other[0])
        mine, theirs = placed(*one), placed(*other)
        for at in sorted(mine.keys() & theirs.keys()):
            if at <= same:  # the anchor, before it, is still the same
                yield mine[at], theirs[at]


def share_equal(left: Mapping[str, Any], right: Mapping[str, Any]) -> tuple[float, int]:
    """Give the share of equal drafted ids, and how many ids were compared."""
    equal = [a == b for drafts in pairs(left, right) for a, b in zip(*drafts, strict=True)]
    return sum(equal) / len(equal), len(equal)
