# SPDX-License-Identifier: Apache-2.0
"""Computes what speculation costs a hybrid target in memory and traffic, with either scheme.

`per_token`: vLLM keeps a state after each token of a draft, 1 + K state blocks per request. `replay`:
one state block holds the committed state and, after it, the recorded inputs of the T = K + 1 verified
tokens, from which the next committed state is computed. Both follow vLLM's own rules of padding, groups
and admission.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from vllm_eagle_ext.memory.geometry import Attention, Recurrent, Target
from vllm_eagle_ext.memory.state_blocks import Scheme, state_blocks

# Smallest kernel block in tokens: FlashAttention and Triton on a GPU, vLLM's default block on a CPU.
GPU_BLOCK, CPU_BLOCK = 16, 128
# Where FlashInfer's prefill exports states, blocks end where it can export one.
_EXPORTED_EVERY = 64
# vLLM's default batch of a server, in tokens; only windowed layers reserve room for those in flight.
GPU_BATCH = 8192
_GPU_IN_FLIGHT, _CPU_IN_FLIGHT = 2 * GPU_BATCH, 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSetting:
    """Holds what of a run the sizes follow from."""

    k: int
    max_model_len: int
    prefix_caching: bool = True
    cpu: bool = False
    in_flight_tokens: int | None = None  # None: as vLLM's server by default
    attention_alignment: int | None = None  # tokens; None: as attention needs by default
    prefill_exports: bool = False  # FlashInfer's prefill can export states at block ends

    @property
    def block_alignment(self) -> int:
        """Return the tokens of which an attention block of a hybrid target has a multiple."""
        own = self.attention_alignment or (CPU_BLOCK if self.cpu else GPU_BLOCK)
        return lcm(own, _EXPORTED_EVERY) if self.exports_states else own

    @property
    def exports_states(self) -> bool:
        return self.prefill_exports and self.prefix_caching

    @property
    def in_flight(self) -> int:
        return self.in_flight_tokens or (_CPU_IN_FLIGHT if self.cpu else _GPU_IN_FLIGHT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBlock:
    """One layer's part of a KV-cache block, which vLLM calls its page; all layers have the same size."""

    raw: int  # bytes that a recurrent layer uses
    padded: int  # bytes that every layer takes
    tokens: int  # of a full-attention layer of the target in it


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolShare:
    """Says what a request takes of vLLM's pool of blocks on one rank."""

    block_bytes: int  # of one block of the pool
    blocks: int  # a request at max_model_len takes

    def concurrency(self, budget: int) -> float:
        """Return vLLM's "Maximum concurrency" at a KV budget in bytes."""
        return self.pool(budget) / self.blocks

    def fit(self, budget: int) -> int:
        """Count the requests of max_model_len at a time; one block of the pool is vLLM's null block."""
        return max(0, self.pool(budget) - 1) // self.blocks

    def running(self, budget: int, max_num_seqs: int) -> int:
        return min(self.fit(budget), max_num_seqs)

    def pool(self, budget: int) -> int:
        return max(0, budget) // self.block_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShare(PoolShare):
    """Bytes of one request on one rank."""

    state_blocks: int  # in each recurrent layer
    state: int  # padded state blocks of all recurrent layers
    recorded_inputs: int  # part of `state`


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint(StateShare):
    """Bytes on one rank; per request unless said otherwise."""

    scheme: Scheme
    layer_block: LayerBlock
    attention: int  # at max_model_len, the draft's included
    moved: int  # of the recurrent state, per step
    group_layers: int  # of a KV-cache group
    padding_layers: int  # that groups take up and no layer uses, all together


def recorded_bytes(recurrent: Recurrent, k: int) -> int:
    """Return bytes of the recorded inputs of one step in one layer."""
    return (k + 1) * recurrent.record_bytes


def layer_block_of(target: Target, scheme: Scheme, setting: CacheSetting) -> LayerBlock:
    """Compute the block of one layer, as vLLM does.

    vLLM grows the attention block until it can hold a state, then pads the state to its size.
    """
    recurrent, token_bytes = target.recurrent, target.attention.token_bytes
    raw = recurrent.conv_bytes(setting.k) + recurrent.ssm_bytes
    if scheme == "replay":
        raw += recorded_bytes(recurrent, setting.k)
    tokens = round_up(ceil(raw, token_bytes), setting.block_alignment)
    return LayerBlock(raw=raw, padded=tokens * token_bytes, tokens=tokens)


def footprint(
    target: Target, scheme: Scheme, setting: CacheSetting, draft: Sequence[Attention] = ()
) -> Footprint:
    """Compute what one request takes with the scheme.

    Args:
        draft: attention layers that a draft adds to the pool.
    """
    recurrent = target.recurrent
    own = layer_block_of(target, scheme, setting)
    layers = merged([target.attention, *draft])
    padded = max(own.tokens * attention.token_bytes for attention in layers)
    layer_block = LayerBlock(raw=own.raw, padded=padded, tokens=own.tokens)
    states = state_blocks(
        scheme, k=setting.k, prefix_caching=setting.prefix_caching, cpu=setting.cpu,
        prefill_exports=setting.prefill_exports,
    ).count  # fmt: skip
    blocks = [blocks_of(attention, layer_block, setting) for attention in layers]
    counts = [attention.layers for attention in layers]
    every = [recurrent.layers, *counts]
    wide = group_size(every)
    recorded = recorded_bytes(recurrent, setting.k) if scheme == "replay" else 0
    return Footprint(
        scheme=scheme,
        state_blocks=states,
        layer_block=layer_block,
        state=recurrent.layers * states * padded,
        recorded_inputs=recurrent.layers * states * recorded,
        attention=sum(n * b for n, b in zip(counts, blocks, strict=True)) * padded,
        moved=moved_per_step(recurrent, scheme, setting.k),
        block_bytes=wide * padded,
        blocks=sum(
            ceil(count, wide) * taken for count, taken in zip(every, [states, *blocks], strict=True)
        ),
        group_layers=wide,
        padding_layers=sum(round_up(count, wide) - count for count in every),
    )


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


def merged(layers: Sequence[Attention]) -> list[Attention]:
    """Merge the layers of one shape and window, which share vLLM's groups."""
    found: dict[tuple[object, ...], Attention] = {}
    for new in layers:
        key = (new.kv_heads, new.head_dim, new.window, new.element_bytes, new.tp)
        old = found.get(key)
        found[key] = new if old is None else _footprint_of_all(old, new)
    return list(found.values())


def _footprint_of_all(old: Attention, new: Attention) -> Attention:
    return Attention(
        layers=old.layers + new.layers, kv_heads=new.kv_heads, head_dim=new.head_dim,
        window=new.window, element_bytes=new.element_bytes, tp=new.tp,
    )  # fmt: skip


def blocks_of(attention: Attention, layer_block: LayerBlock, setting: CacheSetting) -> int:
    """Count the blocks of one layer that a request takes at max_model_len.

    A layer with fewer bytes per token gets more tokens to a block if that fills it, else it is padded.
    A windowed layer keeps its window, the tokens in flight, and a block for where the window starts.
    """
    own = layer_block.tokens * attention.token_bytes
    times = layer_block.padded // own if layer_block.padded % own == 0 else 1
    tokens = layer_block.tokens * times
    if attention.window is None:
        return ceil(setting.max_model_len, tokens)
    kept = min(attention.window - 1 + setting.in_flight, setting.max_model_len)
    return ceil(kept, tokens) + 1


def group_size(counts: Sequence[int]) -> int:
    """Count the layers of a group, as vLLM's `_get_kv_cache_groups_uniform_page_size` chooses it.

    From 0.33 on a target's class may group its layers itself (`SupportsKVCacheGrouping`, experimental).
    Ours do not: 0.32 lacks it, and plans count what vLLM does.
    """
    fewest, most = min(counts), max(counts)
    return most if most < fewest * 1.5 else fewest


def ceil(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def round_up(value: int, multiple: int) -> int:
    return ceil(value, multiple) * multiple
