# SPDX-License-Identifier: Apache-2.0
"""Computes up to how many requests vLLM replays a decode step as one CUDA graph.

In a uniform step each request has 1 + K rows. A full graph is captured for a number of tokens, which
vLLM rounds up to whole requests; a larger step runs without one. The rules are those of vLLM's
`VllmConfig._set_cudagraph_sizes` and of its runners, alike in 0.32 and 0.33.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_eagle_ext.memory.footprint import GPU_BATCH, round_up

_LIMIT, _LIMIT_SM_10X = 512, 1024  # tokens, unless max_cudagraph_capture_size says another
# What vLLM's `MODELS_CONFIG_MAP` sets it to, by the target's architecture.
_SET_BY_VLLM = {"GptOssForCausalLM": 1024}
_STEP, _FINE_STEP, _FINE_BELOW = 16, 8, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class FullGraphs:
    """Says where full graphs end, and what would be asked of them."""

    tokens: int  # of the largest graph
    requests: int  # of the largest uniform step that has one
    running: int  # requests of a step at full load
    rows: int  # of each request in a step, 1 + K
    wanted: int  # the max_cudagraph_capture_size that captures a step of all running requests

    @property
    def enough(self) -> bool:
        return self.running <= self.requests


def beyond_graphs(graphs: FullGraphs) -> str:
    """Say what of the capacity lies beyond the graphs, and how to have it within."""
    return (
        f"A step of up to {graphs.running} requests of {graphs.rows} tokens can run, and full CUDA "
        f"graphs end at {graphs.requests} requests ({graphs.tokens} tokens): "
        f"--max-cudagraph-capture-size {graphs.wanted} captures all, for more memory and a longer start."
    )


def default_graphs(
    *, k: int, max_num_seqs: int, fit: int, capability: tuple[int, int], architecture: str = "",
    batch_tokens: int = GPU_BATCH,
) -> FullGraphs:  # fmt: skip
    """Compute where graphs end when no size is set.

    Args:
        fit: requests that the KV cache holds at a time.
        capability: compute capability of the GPU.
        batch_tokens: vLLM's max_num_batched_tokens.
    """
    rows = 1 + k
    limit = min(2 * max_num_seqs * rows, _LIMIT_SM_10X if capability[0] == 10 else _LIMIT)
    limit = min(limit, batch_tokens)
    sizes = {*_token_sizes(limit), *_request_sizes(limit, rows, max_num_seqs)}
    if set_ := _SET_BY_VLLM.get(architecture):
        sizes = {*_token_sizes(min(set_, batch_tokens))}
    return graphs_of(sorted(sizes), k=k, max_num_seqs=max_num_seqs, fit=fit, batch_tokens=batch_tokens)


def graphs_of(
    sizes: Sequence[int], *, k: int, max_num_seqs: int, fit: int, batch_tokens: int
) -> FullGraphs:
    """Read where graphs end from the sizes in tokens that vLLM captures."""
    rows = 1 + k
    running = min(fit, max_num_seqs, batch_tokens // rows)
    return FullGraphs(
        tokens=max(sizes, default=0), requests=_largest_step(sizes, rows, max_num_seqs),
        running=running, rows=rows, wanted=min(batch_tokens, _wanted(running, rows, max_num_seqs)),
    )  # fmt: skip


def _largest_step(sizes: Sequence[int], rows: int, max_num_seqs: int) -> int:
    """Count the requests of the largest uniform step with a graph."""
    most = min(max(sizes, default=0), max_num_seqs * rows)
    rounded = [round_up(size, rows) for size in sizes]
    return max((size // rows for size in rounded if size <= most), default=0)


def _wanted(running: int, rows: int, max_num_seqs: int) -> int:
    """Return the size in tokens to capture for so many running requests.

    vLLM cuts a size to one that it captures, a multiple of 8 below 256 tokens and of 16 from there. It
    drops what whole requests make larger than it: the next multiples may be needed.
    """
    tokens = running * rows
    first = round_up(tokens, _STEP if tokens >= _FINE_BELOW else _FINE_STEP)
    for size in range(first, first + rows + 2 * _STEP, _STEP):
        if _largest_step(_token_sizes(size), rows, max_num_seqs) >= running:
            return size
    return first


def _token_sizes(limit: int) -> list[int]:
    sizes = [1, 2, 4, *range(_FINE_STEP, _FINE_BELOW, _FINE_STEP), *range(_FINE_BELOW, limit + 1, _STEP)]
    return [size for size in sizes if size <= limit]


def _request_sizes(limit: int, rows: int, max_num_seqs: int) -> list[int]:
    counts = {*_token_sizes(min(max_num_seqs, limit // rows)), max_num_seqs}
    return [count * rows for count in counts if count * rows <= limit]
