# SPDX-License-Identifier: Apache-2.0
"""Estimates from a target's config what a step reads of its weights, and what a draft's head adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_eagle_ext.draft.target_facts import text_config
from vllm_eagle_ext.memory.geometry import head_dim, layer_kinds, size

# Bits of a weight, where the quantisation does not state them.
_QUANTISED_BITS = {"fp8": 8, "fbgemm_fp8": 8, "modelopt": 8, "nvfp4": 4.5, "mxfp4": 4.25}
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_CHOSEN = ("num_experts_per_tok", "experts_per_token", "moe_topk", "moe_k")  # by each token
_PLAIN_BITS = 16  # of an unquantised weight
_SCALE_BITS = 0.5  # per weight, for scales of small groups


@dataclass(frozen=True, slots=True)
class HeadRead:
    """Holds what a draft reads of its output head."""

    size: int  # bytes
    share: float  # of what the target reads to compute one token
    per: str  # "drafted token", or "block" of tokens that are drafted at once

    def __str__(self) -> str:
        size = f"{self.size / 1e9:.2f} GB" if self.size > 1e8 else f"{self.size / 1e6:.2g} MB"
        return f"{size} per {self.per}, {self.share:.0%} of a step of the target"


@dataclass(frozen=True, slots=True)
class _FeedForward:
    """Parameters of all layers' MLPs."""

    every_token: int  # of dense layers, shared experts and routers
    expert: int = 0  # of one expert in each layer that has experts
    experts: int = 0  # in such a layer


def head_read(head: int, target: Mapping[str, Any], *, at_once: bool) -> HeadRead | None:
    """Compare what a draft reads of its head with a step of its target; None: a size is not stated.

    Args:
        head: bytes of the draft's output head.
        target: the target's config.json, or that of its language model.
        at_once: one read serves a block of tokens.
    """
    step = bytes_per_step(target)
    return HeadRead(head, head / step, "block" if at_once else "drafted token") if step else None


def bytes_per_step(config: Mapping[str, Any], *, rows: int = 1) -> int | None:
    """Estimate the bytes of weights that a target reads to compute a step.

    Norms, biases and what images take are left out. Of experts, those are counted that the step's rows
    choose if each chooses evenly and by itself.

    Args:
        config: the target's config.json, or that of its language model.
        rows: tokens that are computed at once.

    Returns:
        None where a size is not stated.
    """
    text = text_config(config)
    try:
        mlps = _feed_forward(text)
        read = 0.0  # experts of a layer
        if mlps.expert:
            chosen = size(text, next((key for key in _CHOSEN if text.get(key)), _CHOSEN[0]))
            read = mlps.experts * (1 - (1 - chosen / mlps.experts) ** rows)
        others = _mixers(text) + mlps.every_token
        head = size(text, "vocab_size") * size(text, "hidden_size")
    except ValueError:
        return None
    expert_bits, other_bits = _bits(config)
    return int((read * mlps.expert * expert_bits + others * other_bits + head * _PLAIN_BITS) / 8)


def _mixers(text: Mapping[str, Any]) -> int:
    """Count the parameters of all layers' attention and recurrence."""
    layers, hidden = size(text, "num_hidden_layers"), size(text, "hidden_size")
    linear = layer_kinds(text)[0] if text.get("linear_num_key_heads") else 0
    count = (layers - linear) * _attention(text, hidden)
    if linear:
        keys = size(text, "linear_num_key_heads") * size(text, "linear_key_head_dim")
        heads = size(text, "linear_num_value_heads")
        values = heads * size(text, "linear_value_head_dim")
        mixed = 2 * keys + values
        # q, k, v; gate z; output; a and b; convolution
        convolution = mixed * size(text, "linear_conv_kernel_dim")
        count += linear * (hidden * (mixed + 2 * values + 2 * heads) + convolution)
    return count


def _attention(text: Mapping[str, Any], hidden: int) -> int:
    """Count the parameters of a layer of attention, latent or per head."""
    heads = size(text, "num_attention_heads")
    if text.get("kv_lora_rank"):
        latent, rotated = size(text, "kv_lora_rank"), size(text, "qk_rope_head_dim")
        plain, values = size(text, "qk_nope_head_dim"), size(text, "v_head_dim")
        rank = text.get("q_lora_rank")
        queries = heads * (plain + rotated)
        query = rank * (hidden + queries) if type(rank) is int else hidden * queries
        out = heads * (latent * (plain + values) + values * hidden)
        return query + hidden * (latent + rotated) + out
    kv = size(text, "num_key_value_heads") if text.get("num_key_value_heads") is not None else heads
    gates = heads if text.get("linear_num_key_heads") else 0  # of the output, in hybrid targets
    # query, its gate and output; key and value
    return hidden * head_dim(text) * (2 * heads + gates + 2 * kv)


def _feed_forward(text: Mapping[str, Any]) -> _FeedForward:
    hidden, layers = size(text, "hidden_size"), size(text, "num_hidden_layers")
    kind = next((key for key in _EXPERTS if text.get(key)), None)
    if kind is None:
        return _FeedForward(layers * 3 * hidden * size(text, "intermediate_size"))
    experts, sparse = size(text, kind), len(_sparse_layers(text, layers))
    is_gpt_oss = kind == "num_local_experts" and not text.get("moe_intermediate_size")
    width = size(text, "intermediate_size" if is_gpt_oss else "moe_intermediate_size")
    shared = width * size(text, "n_shared_experts") if text.get("n_shared_experts") else 0
    if text.get("shared_expert_intermediate_size"):
        shared += size(text, "shared_expert_intermediate_size")
    router = hidden * (experts + 1)
    dense = (layers - sparse) * 3 * hidden * size(text, "intermediate_size") if sparse < layers else 0
    return _FeedForward(
        dense + sparse * (3 * hidden * shared + router), sparse * 3 * hidden * width, experts
    )


def _sparse_layers(text: Mapping[str, Any], layers: int) -> list[int]:
    """List the layers with experts: every `decoder_sparse_step`-th, but for those that stay dense."""
    dense = text.get("mlp_only_layers")
    dense = dense if isinstance(dense, list) else []
    step = size(text, "decoder_sparse_step") if text.get("decoder_sparse_step") else 1
    first = size(text, "first_k_dense_replace") if text.get("first_k_dense_replace") else 0
    return [layer for layer in range(first, layers) if (layer + 1) % step == 0 and layer not in dense]


def _bits(config: Mapping[str, Any]) -> tuple[float, float]:
    """Return the bits of a weight of experts, and of the other layers."""
    scheme = config.get("quantization_config") or text_config(config).get("quantization_config")
    if not isinstance(scheme, Mapping):
        return _PLAIN_BITS, _PLAIN_BITS
    width = scheme.get("bits", scheme.get("w_bit", _first_group_bits(scheme)))
    is_width = type(width) is int and 0 < width <= 16
    bits = width + _SCALE_BITS if is_width else _QUANTISED_BITS.get(str(scheme.get("quant_method")), 8)
    ignored = scheme.get("ignore")
    names = ignored if isinstance(ignored, list) else []
    keeps_attention = any("self_attn" in str(name) for name in names)
    return bits, _PLAIN_BITS if keeps_attention or scheme.get("quant_method") == "mxfp4" else bits


def _first_group_bits(scheme: Mapping[str, Any]) -> object:
    """Read the bits of the first group of compressed-tensors."""
    groups = scheme.get("config_groups")
    group = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = group.get("weights") if isinstance(group, Mapping) else None
    return weights.get("num_bits") if isinstance(weights, Mapping) else None
