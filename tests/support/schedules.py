"""A server's schedule: engines of few cache blocks, and drafts that follow vLLM's schedule of K."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

from tests.support.batches import drafts_of
from vllm_eagle_ext.measure.reference.published import accepted_length

CHUNK, BLOCK, LENGTH = 16, 32, 160
PLAIN = {"dtype": "float32", "block_size": BLOCK, "max_num_seqs": 8, "max_model_len": LENGTH}
PER_POSITION = "spec_decode_num_accepted_tokens_per_pos"


def cut(prompts: list[list[int]], lengths: Sequence[int]) -> list[list[int]]:
    flat = [token for prompt in prompts for token in prompt]
    return [flat[130 * i : 130 * i + length] for i, length in enumerate(lengths)]


def following(speculative: dict[str, Any], schedule: list[list[int]]) -> dict[str, Any]:
    return speculative | {"num_speculative_tokens_per_batch_size": schedule}


def phases(result: dict[str, Any]) -> list[int]:
    """The values of K, one after the other."""
    return [k for k, _ in groupby(step["k"] for step in result["steps"])]


def assert_drafts_follow_the_schedule(result: dict[str, Any], schedule: list[list[int]]) -> None:
    """What a step asks for is what the next one verifies, and what vLLM counts."""
    steps, counters = result["steps"], result["counters"]
    for step in steps:
        count = len(step["verified"])
        assert step["k"] == next(k for first, last, k in schedule if first <= count <= last)
    for before, step in pairwise(steps):
        verified = {n for name, n in step["verified"].items() if name in before["verified"]}
        assert verified <= {before["k"]}
    drafts = [n for step in steps for n in step["verified"].values() if n]
    assert counters["spec_decode_num_drafts"] == len(drafts)
    assert counters["spec_decode_num_draft_tokens"] == sum(drafts)
    accepted = counters["spec_decode_num_accepted_tokens_per_pos"]
    assert accepted == sorted(accepted, reverse=True)
    assert sum(accepted) == counters["spec_decode_num_accepted_tokens"] > 0


def common_lengths(left: dict[str, Any], right: dict[str, Any]) -> list[int]:
    """Per text: how many tokens, with its prompt's, both runs share."""
    texts = zip(left["prompts"], left["tokens"], right["tokens"], strict=True)
    return [len(prompt) + accepted_length(a, b) for prompt, a, b in texts]


def drafts_by_width(left: dict[str, Any], right: dict[str, Any]) -> dict[int, tuple[int, int]]:
    """Drafts of the left run against those of the right one, which are at least as wide, behind the same
    tokens: width -> how many, and how many of them differ."""
    widths: dict[int, tuple[int, int]] = {}
    texts = zip(common_lengths(left, right), drafts_of(left), drafts_of(right), strict=True)
    for common, one, other in texts:
        for length in one.keys() & other.keys() & set(range(common + 1)):
            row = one[length]
            count, differ = widths.get(len(row), (0, 0))
            widths[len(row)] = count + 1, differ + (row != other[length][: len(row)])
    return widths
