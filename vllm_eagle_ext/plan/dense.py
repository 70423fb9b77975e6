# SPDX-License-Identifier: Apache-2.0
"""Plans the keys and values of a target without recurrent state, which has nothing else to plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_eagle_ext.checkpoint.target_facts import text_config
from vllm_eagle_ext.errors import UnsupportedTargetError
from vllm_eagle_ext.memory.footprint import (
    CacheSetting,
    LayerBlock,
    PoolShare,
    blocks_of,
    ceil,
    group_size,
    merged,
)
from vllm_eagle_ext.memory.geometry import Attention, dtype_of, head_dim, model_bytes, size
from vllm_eagle_ext.memory.parameter_count import Estimate, estimate_weights

_FULL, _SLIDING = "full_attention", "sliding_attention"
# Keys of layers whose cache is not keys and values per head, alike in all layers: name -> what they are.
_OTHERS = {
    "kv_lora_rank": "latent attention",
    "index_topk": "sparse attention",
    "attention_chunk_size": "chunked attention",
    "global_head_dim": "layers of several head sizes",
    "num_kv_shared_layers": "layers that share keys and values",
    "hybrid_override_pattern": "recurrent layers of another kind",
    "layers_block_type": "recurrent layers of another kind",
    "attn_type_list": "recurrent layers of another kind",
    "linear_attn_config": "recurrent layers of another kind",
    "mamba_d_state": "recurrent layers of another kind",
    "ssm_state_size": "recurrent layers of another kind",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseTarget:
    attention: tuple[Attention, ...]  # one of full layers, one of sliding ones, or both
    model_bytes: int  # per element of the model's dtype
    max_position_embeddings: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCost(PoolShare):
    """Bytes on one rank, the draft's layers included."""

    token: int  # of one token, in layers that keep every token
    attention: int  # of one request at max_model_len


def is_hybrid(config: Mapping[str, Any]) -> bool:
    """Find out whether the config tells of gated delta nets, rightly or not."""
    text = text_config(config)
    kinds = text.get("layer_types")
    linear = ("linear_num_", "linear_key_", "linear_value_", "linear_conv_")
    return any(key.startswith(linear) for key in text) or (
        isinstance(kinds, list) and "linear_attention" in kinds
    )


def read_dense(config: Mapping[str, Any], *, tp: int, kv_bytes: int | None) -> DenseTarget:
    """Read the shapes of a dense target's attention layers from config.json.

    Args:
        kv_bytes: per element of keys and values; None: as the model's dtype.

    Raises:
        UnsupportedTargetError: layers that keep something else, or a size that is none.
    """
    text = text_config(config)
    for key, what in _OTHERS.items():
        if text.get(key):
            raise _bad_target(key, text[key], f"unset: {what} cannot be planned for")
    heads = "num_key_value_heads" if text.get("num_key_value_heads") is not None else None
    own = model_bytes(dtype_of(config))
    attention = tuple(
        Attention(
            layers=count, kv_heads=size(text, heads or "num_attention_heads"),
            head_dim=head_dim(text), window=window, element_bytes=kv_bytes or own, tp=tp,
        )
        for window, count in _attention_layers(text)
    )  # fmt: skip
    length = text.get("max_position_embeddings")
    return DenseTarget(
        attention=attention,
        model_bytes=own,
        max_position_embeddings=None if length is None else size(text, "max_position_embeddings"),
    )


def _attention_layers(text: Mapping[str, Any]) -> Iterator[tuple[int | None, int]]:
    """Yield each window (None: none) and how many layers have it."""
    count, kinds = size(text, "num_hidden_layers"), text.get("layer_types")
    if kinds is None:
        if text.get("sliding_window") and text.get("use_sliding_window") is not False:
            raise _bad_target(
                "layer_types", None, "stated, as `sliding_window` does not say which slide"
            )
        kinds = [_FULL] * count
    known = isinstance(kinds, list) and all(kind in (_FULL, _SLIDING) for kind in kinds)
    if not known or len(kinds) != count:
        raise _bad_target("layer_types", kinds, f'{count} times "{_FULL}" or "{_SLIDING}"')
    if full := kinds.count(_FULL):
        yield None, full
    if full < count:
        yield size(text, "sliding_window"), count - full


def kv_cost(target: DenseTarget, setting: CacheSetting, draft: Sequence[Attention] = ()) -> KvCost:
    """Compute what keys and values cost; layers of the draft are attention layers like the target's."""
    layers = merged([*target.attention, *draft])
    tokens = setting.block_alignment
    token = sum(a.layers * a.token_bytes for a in layers if a.window is None)
    if all(attention.window is None for attention in layers):  # one group, each layer of its own size
        blocks = ceil(setting.max_model_len, tokens)
        return KvCost(
            token=token, attention=blocks * tokens * token, block_bytes=tokens * token, blocks=blocks
        )
    size = max(tokens * attention.token_bytes for attention in layers)
    layer_block = LayerBlock(raw=size, padded=size, tokens=tokens)
    counts = [attention.layers for attention in layers]
    taken = [blocks_of(attention, layer_block, setting) for attention in layers]
    wide = group_size(counts)
    return KvCost(
        token=token,
        attention=sum(n * b for n, b in zip(counts, taken, strict=True)) * size,
        block_bytes=wide * size,
        blocks=sum(ceil(n, wide) * b for n, b in zip(counts, taken, strict=True)),
    )


def estimate_dense(config: Mapping[str, Any], target: DenseTarget) -> Estimate:
    """Estimate the size of a dense target's weights from config.json.

    Raises:
        UnsupportedTargetError: a size that the layers follow from is missing, or they are of another
            kind.
    """
    text = text_config(config)
    if text.get("hidden_act") != "silu":
        raise _bad_target("hidden_act", text.get("hidden_act"), '"silu", whose layers are known')
    return estimate_weights(config, model_bytes=target.model_bytes)


def _bad_target(key: str, value: object, allowed: str) -> UnsupportedTargetError:
    return UnsupportedTargetError(
        field=f"{key} of the target's config.json", value=value, allowed=allowed,
        remedy="add --by-vllm and a draft: the planner of the vLLM that is installed knows such layers",
    )  # fmt: skip
