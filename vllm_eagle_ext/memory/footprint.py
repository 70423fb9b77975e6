# SPDX-License-Identifier: Apache-2.0
"""Computes what a request of a hybrid target costs in memory with either scheme.

`per_token`: vLLM keeps a state after each token of a draft, 1 + K state blocks per request. `replay`:
one state block holds the committed state and, after it, the recorded inputs of the T = K + 1 verified
tokens, from which the next committed state is computed. Both follow vLLM's own rules of padding, groups
and admission.

Then the words for what replay saves that a start logs and a plan prints, and up to how many requests
vLLM replays a decode step as one CUDA graph. In a uniform step each request has 1 + K rows. A full graph
is captured for a number of tokens, which vLLM rounds up to whole requests; a larger step runs without
one. Those rules are of vLLM's `VllmConfig._set_cudagraph_sizes` and of its runners, alike in 0.32, 0.33.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm

from vllm_eagle_ext.memory.geometry import Attention, Recurrent, Target
from vllm_eagle_ext.memory.state_blocks import Scheme, counted, state_blocks

MIB, GIB = 2**20, 2**30

# Smallest kernel block in tokens: FlashAttention and Triton on a GPU, vLLM's default block on a CPU.
GPU_BLOCK, CPU_BLOCK = 16, 128
# Where FlashInfer's prefill exports states, blocks end where it can export one.
_EXPORTED_EVERY = 64
# vLLM's default batch of a server, in tokens; only windowed layers reserve room for those in flight.
GPU_BATCH = 8192
_GPU_IN_FLIGHT, _CPU_IN_FLIGHT = 2 * GPU_BATCH, 2048
_OTHERWISE = "with one state block per draft token"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSetting:
    """Holds what of a run the sizes follow from."""

    k: int
    max_model_len: int
    prefix_caching: bool = True
    cpu: bool = False
    attention_alignment: int | None = None  # tokens; None: as attention needs by default
    prefill_exports: bool = False  # FlashInfer's prefill can export states at block ends

    @property
    def block_alignment(self) -> int:
        """Return the tokens of which an attention block of a hybrid target has a multiple."""
        own = self.attention_alignment or (CPU_BLOCK if self.cpu else GPU_BLOCK)
        exports_states = self.prefill_exports and self.prefix_caching
        return lcm(own, _EXPORTED_EVERY) if exports_states else own


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes on one rank; per request of max_model_len unless said otherwise.

    A layer's block is its part of a KV-cache block, vLLM's page; those of all layers have one size.
    """

    block_bytes: int  # of one block of vLLM's pool
    blocks: int  # that a request takes of the pool
    attention: int = 0  # keys and values, the draft's included
    state_blocks: int = 0  # in each recurrent layer
    state: int = 0  # padded state blocks of all recurrent layers
    recorded_inputs: int = 0  # part of `state`
    moved: int = 0  # of the recurrent state, per step
    unpadded: int = 0  # of a layer's block that a recurrent layer uses
    padded: int = 0  # of a layer's block
    tokens: int = 0  # of a full-attention layer of the target in its block
    group_layers: int = 0  # of a KV-cache group
    padding_layers: int = 0  # that groups take up and no layer uses, all together

    def concurrency(self, budget: int) -> float:
        """Return vLLM's "Maximum concurrency" at a KV budget in bytes."""
        return self.pool(budget) / self.blocks

    def fit(self, budget: int) -> int:
        """Count the requests at a time; one block of the pool is vLLM's null block."""
        return max(0, self.pool(budget) - 1) // self.blocks

    def running(self, budget: int, max_num_seqs: int) -> int:
        return min(self.fit(budget), max_num_seqs)

    def pool(self, budget: int) -> int:
        return max(0, budget) // self.block_bytes


def footprint(
    target: Target, scheme: Scheme, setting: CacheSetting, draft: Sequence[Attention] = ()
) -> Footprint:
    """Compute what one request takes with the scheme.

    Args:
        draft: attention layers that a draft adds to the pool.
    """
    layers = _merged([target.attention, *draft])
    counts = [attention.layers for attention in layers]
    # The block of a layer. vLLM grows the attention block until it can hold a state, then pads.
    recurrent = target.recurrent
    recorded = recorded_bytes(recurrent, setting.k) if scheme == "replay" else 0
    unpadded = recurrent.conv_bytes(setting.k) + recurrent.ssm_bytes + recorded
    tokens = round_up(ceil(unpadded, target.attention.token_bytes), setting.block_alignment)
    padded = max(tokens * attention.token_bytes for attention in layers)
    states = state_blocks(
        scheme, k=setting.k, prefix_caching=setting.prefix_caching, cpu=setting.cpu,
        prefill_exports=setting.prefill_exports,
    ).count  # fmt: skip
    # The groups of layers, whose blocks vLLM hands out together.
    taken = [_blocks_of(attention, padded, tokens, setting) for attention in layers]
    every = [recurrent.layers, *counts]
    wide = group_size(every)
    return Footprint(
        block_bytes=wide * padded,
        blocks=sum(ceil(n, wide) * blocks for n, blocks in zip(every, [states, *taken], strict=True)),
        attention=sum(n * blocks for n, blocks in zip(counts, taken, strict=True)) * padded,
        state_blocks=states,
        state=recurrent.layers * states * padded,
        recorded_inputs=recurrent.layers * states * recorded,
        moved=moved_per_step(recurrent, scheme, setting.k),
        unpadded=unpadded,
        padded=padded,
        tokens=tokens,
        group_layers=wide,
        padding_layers=sum(round_up(count, wide) - count for count in every),
    )


def recorded_bytes(recurrent: Recurrent, k: int) -> int:
    """Return bytes of the recorded inputs of one step in one layer."""
    return (k + 1) * recurrent.record_width * recurrent.model_bytes


def moved_per_step(recurrent: Recurrent, scheme: Scheme, k: int) -> int:
    """Return the bytes of recurrent state that one request reads and writes in one step.

    The conv state is not counted. `per_token` reads one state and writes one for each verified token.
    With replay, verification and commit each read the state, the commit writes it, and the recorded
    inputs are written and read once.
    """
    state = recurrent.layers * recurrent.ssm_bytes
    if scheme == "per_token":
        return (1 + k + 1) * state
    return 3 * state + 2 * recurrent.layers * recorded_bytes(recurrent, k)


def _merged(layers: Sequence[Attention]) -> list[Attention]:
    """Merge the layers of one shape and window, which share vLLM's groups."""
    counts: Counter[Attention] = Counter()
    for each in layers:
        counts[replace(each, layers=0)] += each.layers
    return [replace(shape, layers=count) for shape, count in counts.items()]


def _blocks_of(attention: Attention, padded: int, tokens: int, setting: CacheSetting) -> int:
    """Count the blocks of one layer that a request takes at max_model_len.

    A layer with fewer bytes per token gets more tokens to a block if that fills it, else it is padded.
    A windowed layer keeps its window, the tokens in flight, and a block for where the window starts.
    """
    own = tokens * attention.token_bytes
    tokens *= padded // own if padded % own == 0 else 1
    if attention.window is None:
        return ceil(setting.max_model_len, tokens)
    in_flight = _CPU_IN_FLIGHT if setting.cpu else _GPU_IN_FLIGHT
    return ceil(min(attention.window - 1 + in_flight, setting.max_model_len), tokens) + 1


def group_size(counts: Sequence[int]) -> int:
    """Count the layers of a group, as vLLM's `_get_kv_cache_groups_uniform_page_size` chooses it.

    From 0.33 on a target's class may do it itself (`SupportsKVCacheGrouping`); ours do not.
    """
    fewest, most = min(counts), max(counts)
    return most if most < fewest * 1.5 else fewest


def savings_line(replay: Footprint, per_token: Footprint, *, budget: int, length: int) -> str:
    """Say what replay saves over vLLM's own scheme, at a KV budget in bytes.

    Args:
        length: of a request in tokens.
    """
    fit, other_fit = replay.fit(budget), per_token.fit(budget)
    if fit == other_fit:
        same = {0: f"{_OTHERWISE} neither", 1: f"{_OTHERWISE} as well"}
        compared = f", {same.get(fit, f'as many as {_OTHERWISE}')}"
    else:
        compared = f" instead of {other_fit}" if other_fit else f", {_OTHERWISE} none"
    return (
        f"Recurrent state: replay, {counted(replay.state_blocks)} per request "
        f"(per_token: {per_token.state_blocks}): "
        f"{mib(replay.state)} MiB instead of {mib(per_token.state)} MiB per request, "
        f"recorded inputs {mib(replay.recorded_inputs)} MiB of it; "
        f"{requests_fit(fit, length)}{compared}."
    )


def requests_fit(count: int, length: int) -> str:
    if count == 1:
        return f"1 request of {length} tokens fits"
    return f"{count} requests of {length} tokens fit" if count else f"no request of {length} tokens fits"


def mib(size: float) -> str:
    """Round to whole MiB, or to two digits of a small size."""
    value = size / MIB
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def ceil(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def round_up(value: int, multiple: int) -> int:
    return ceil(value, multiple) * multiple


_LIMIT, _LIMIT_SM_10X = 512, 1024  # tokens, unless max_cudagraph_capture_size says another
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


def default_graphs(*, k: int, max_num_seqs: int, fit: int, capability: tuple[int, int]) -> FullGraphs:
    """Compute where graphs end when no size is set.

    Args:
        fit: requests that the KV cache holds at a time.
        capability: compute capability of the GPU.
    """
    rows = 1 + k
    limit = min(2 * max_num_seqs * rows, _LIMIT_SM_10X if capability[0] == 10 else _LIMIT)
    requests = {*_token_sizes(min(max_num_seqs, limit // rows)), max_num_seqs}
    sizes = {*_token_sizes(limit), *(count * rows for count in requests if count * rows <= limit)}
    return graphs_of(sorted(sizes), k=k, max_num_seqs=max_num_seqs, fit=fit, batch_tokens=GPU_BATCH)


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
