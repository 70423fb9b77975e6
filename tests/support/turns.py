"""Two turns of a talk, the second behind a hit in vLLM's prefix cache.

Two of vLLM's defaults keep a CPU engine from ever reading a state that a commit wrote at a block
boundary (0.32): of a request's state blocks only the one at the end of the prompt is kept for others
(`prefix_cache_retention_interval` 0), and the scheduler of a platform without async scheduling gives the
block back before it is entered in the cache, unless a step ends or starts right there. Runs with the
cache on keep the state of every block boundary and use the scheduler of a GPU.
"""

from __future__ import annotations

from typing import Any

from tests.support.near_ties import near_tie_gaps

BLOCK = 256
ASYNC = "vllm.v1.core.sched.async_scheduler.AsyncScheduler"
CACHED = {
    "enable_prefix_caching": True,
    "prefix_cache_retention_interval": BLOCK,
    "scheduler_cls": ASYNC,
}
# Request -> block boundary in its own text.
GENERATED_BLOCK_END = {0: BLOCK, 1: BLOCK, 2: BLOCK, 3: 2 * BLOCK}


def two_turns(prompts: list[list[int]]) -> dict[str, Any]:
    """Four prompts end before a block boundary, one goes on behind two of them and is sent twice."""
    flat = [token for prompt in prompts for token in prompt]
    starts = [sum(map(len, prompts[:i])) for i in (0, 9, 18, 27, 36)]
    lengths = [BLOCK - 20, BLOCK - 12, BLOCK - 5, 2 * BLOCK - 9, 2 * BLOCK + 40]
    texts = [flat[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    return {
        "prompts": [*texts, texts[-1]],
        "max_tokens": [32, 32, 32, 32, 24, 24],
        "then": prompts[50][:4],
        "concurrency": 5,
        "logprobs": 5,
    }


def same_prompts(plain, other) -> list[int]:
    """Requests whose second turn starts from the same text."""
    texts = zip(plain["tokens"], other["tokens"], strict=True)
    return [request for request, (a, b) in enumerate(texts) if a == b]


def second_turn_gaps(plain, other) -> list[float]:
    same = same_prompts(plain, other)
    return near_tie_gaps(*([r[part][i] for i in same] for r, part in (
        (plain, "second_turn"), (plain, "second_logprobs"), (other, "second_turn"),
    )))  # fmt: skip


def largest_difference(left, right) -> float:
    """Between two texts' log-probabilities of the chosen tokens, up to where the texts diverge."""
    largest = 0.0
    for a, b in zip(left, right, strict=True):
        if a.keys() != b.keys():
            return max(largest, *(abs(a[token] - b[token]) for token in a.keys() & b.keys()))
        largest = max(largest, *(abs(a[token] - b[token]) for token in a))
    return largest
