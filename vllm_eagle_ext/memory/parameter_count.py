# SPDX-License-Identifier: Apache-2.0
"""Estimates how large a target's weights are only from its config, where its files are not at hand.

It knows Qwen3-Next, Qwen3.5, Qwen3.6 and, with their attention counted elsewhere, targets of full
attention; dense ones and mixtures of experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_eagle_ext.checkpoint import DraftSpec
from vllm_eagle_ext.checkpoint.target_facts import text_config
from vllm_eagle_ext.errors import UnsupportedTargetError
from vllm_eagle_ext.memory.geometry import Target, head_dim, layer_kinds, size

# Share by which an estimate may be off: norms and biases are left out, and of a quantised checkpoint
# it is unknown which layers stayed in 16 bit.
_ERROR, _QUANTISED_ERROR = 0.02, 0.15
_QUANTISED_BITS = {"fp8": 8, "fbgemm_fp8": 8, "modelopt": 8, "nvfp4": 4.5, "mxfp4": 4.25}
_OTHER_EXPERTS = ("num_local_experts", "n_routed_experts")
_SCALES = 0.5  # bits per weight that scales of small groups add


@dataclass(frozen=True, slots=True)
class Estimate:
    size: int  # bytes, all ranks together
    error: float  # share of `size`


def estimate_weights(config: Mapping[str, Any], target: Target) -> Estimate:
    """Estimate the weights of a hybrid target.

    Raises:
        UnsupportedTargetError: a size that the layers follow from is missing.
    """
    mixers = _mixers(text_config(config), target)
    return estimate(config, mixers=mixers, model_bytes=target.recurrent.model_bytes)


def estimate(config: Mapping[str, Any], *, mixers: int, model_bytes: int) -> Estimate:
    """Estimate the weights of a target whose attention and recurrence are counted already.

    Args:
        mixers: parameters of all layers' attention and recurrence.
        model_bytes: per element of the model's dtype.

    Raises:
        UnsupportedTargetError: a size that the other layers follow from is missing.
    """
    text = text_config(config)
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)) is True
    embeddings = size(text, "vocab_size") * size(text, "hidden_size") * (1 if tied else 2)
    layers = mixers + _feed_forward(text) + _vision(config)
    bits = _quantised_bits(config)
    model_bits = 8 * model_bytes
    total = (embeddings * model_bits + layers * (bits or model_bits)) / 8
    return Estimate(int(total), _QUANTISED_ERROR if bits else _ERROR)


def _mixers(text: Mapping[str, Any], target: Target) -> int:
    hidden, gdn, attention = size(text, "hidden_size"), target.recurrent, target.attention
    values = gdn.value_heads * gdn.value_dim
    mixed = 2 * gdn.key_heads * gdn.key_dim + values
    # q, k, v; gate z; output; a and b; convolution
    recurrent = hidden * (mixed + 2 * values + 2 * gdn.value_heads) + mixed * gdn.conv_width
    heads, dim = size(text, "num_attention_heads"), head_dim(text)
    # query and its gate, output; key and value
    full = hidden * dim * (3 * heads + 2 * attention.kv_heads)
    return gdn.layers * recurrent + attention.layers * full


def _feed_forward(text: Mapping[str, Any]) -> int:
    hidden, layers = size(text, "hidden_size"), size(text, "num_hidden_layers")
    experts = text.get("num_experts")
    others = [key for key in _OTHER_EXPERTS if text.get(key)]
    if others:
        raise UnsupportedTargetError(
            field=f"{others[0]} of the target's config.json", value=text[others[0]],
            allowed="unset: experts of this kind are not counted", remedy="state the weights' size",
        )  # fmt: skip
    if not experts:
        return layers * 3 * hidden * size(text, "intermediate_size")
    sparse = len(_sparse_layers(text, layers))
    width = size(text, "num_experts") * size(text, "moe_intermediate_size")
    if text.get("shared_expert_intermediate_size"):
        width += size(text, "shared_expert_intermediate_size")
    router = hidden * (size(text, "num_experts") + 1)
    dense = (layers - sparse) * 3 * hidden * size(text, "intermediate_size") if sparse < layers else 0
    return sparse * (3 * hidden * width + router) + dense


def _sparse_layers(text: Mapping[str, Any], layers: int) -> list[int]:
    """List the layers with experts: every `decoder_sparse_step`-th, but for `mlp_only_layers`."""
    dense = text.get("mlp_only_layers")
    dense = dense if isinstance(dense, list) else []
    step = size(text, "decoder_sparse_step") if text.get("decoder_sparse_step") else 1
    return [layer for layer in range(layers) if (layer + 1) % step == 0 and layer not in dense]


def _vision(config: Mapping[str, Any]) -> int:
    """Count the parameters of the image encoder, which vLLM loads unless told not to."""
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return 0
    try:
        depth, hidden = size(vision, "depth"), size(vision, "hidden_size")
        inner, out = size(vision, "intermediate_size"), size(vision, "out_hidden_size")
        merged = hidden * size(vision, "spatial_merge_size") ** 2
    except ValueError:  # an encoder of another kind: some percent of the whole
        return 0
    return depth * hidden * (4 * hidden + 2 * inner) + merged * (merged + out)


def _quantised_bits(config: Mapping[str, Any]) -> float | None:
    """Return the bits of a weight; None: not quantised."""
    found = config.get("quantization_config") or text_config(config).get("quantization_config")
    if not isinstance(found, Mapping):
        return None
    bits = found.get("bits", found.get("w_bit"))
    if type(bits) is int and 0 < bits <= 16:
        return bits + _SCALES
    return _QUANTISED_BITS.get(str(found.get("quant_method")), 8)


@dataclass(frozen=True, slots=True)
class HeadRead:
    """Holds what a draft reads of its output head."""

    size: int  # bytes
    share: float  # of what the target reads to compute one token
    per: str = "drafted token"

    def __str__(self) -> str:
        size = f"{self.size / 1e9:.2f} GB" if self.size > 1e8 else f"{self.size / 1e6:.2g} MB"
        return f"{size} per {self.per}, {self.share:.0%} of a step of the target"


def head_read(spec: DraftSpec, target: Mapping[str, Any]) -> HeadRead | None:
    """Estimate what a draft reads of its head, plain in 16 bit; None where a size is not stated.

    Args:
        target: the target's config.json, or that of its language model.
    """
    step = bytes_per_token(target)
    if not step:
        return None
    width = spec.target_hidden_size if spec.head == "shared" else spec.hidden_size
    read = spec.vocabulary.size * width * 2
    return HeadRead(read, read / step, "block" if spec.family.drafts_in_parallel else "drafted token")


def bytes_per_token(config: Mapping[str, Any], *, model_bytes: int = 2) -> int | None:
    """Estimate the bytes of weights that a target reads to compute one token.

    Norms, biases and what images take are left out. Of experts, those of one token are counted.

    Args:
        config: the target's config.json, or that of its language model.
        model_bytes: per element of the model's dtype.

    Returns:
        None where a size is not stated.
    """
    text = text_config(config)
    try:
        layers, hidden = size(text, "num_hidden_layers"), size(text, "hidden_size")
        dense, experts = _feed_forward_of_a_token(text, layers, hidden)
        mixers = _mixers_of_a_token(text, layers, hidden)
        head = size(text, "vocab_size") * hidden
    except ValueError:
        return None
    plain, bits = 8 * model_bytes, _quantised_bits(config)
    found = config.get("quantization_config") or text.get("quantization_config") or {}
    only_experts = isinstance(found, Mapping) and found.get("quant_method") == "mxfp4"
    others = plain if only_experts else bits or plain
    return int((experts * (bits or plain) + (mixers + dense) * others + head * plain) / 8)


def _mixers_of_a_token(text: Mapping[str, Any], layers: int, hidden: int) -> int:
    linear = layer_kinds(text)[0] if text.get("linear_num_key_heads") else 0
    found = (layers - linear) * _attention(text, hidden)
    if linear:
        keys = size(text, "linear_num_key_heads") * size(text, "linear_key_head_dim")
        values = size(text, "linear_num_value_heads") * size(text, "linear_value_head_dim")
        found += linear * hidden * (2 * keys + 3 * values)
    return found


def _attention(text: Mapping[str, Any], hidden: int) -> int:
    """Count the parameters of a layer of attention, latent or per head."""
    heads = size(text, "num_attention_heads")
    if text.get("kv_lora_rank"):
        latent, rotated = size(text, "kv_lora_rank"), size(text, "qk_rope_head_dim")
        plain, values = size(text, "qk_nope_head_dim"), size(text, "v_head_dim")
        rank = text.get("q_lora_rank")
        queries = heads * (plain + rotated)
        asked = rank * (hidden + queries) if type(rank) is int else hidden * queries
        return (
            asked + hidden * (latent + rotated) + heads * (latent * (plain + values) + values * hidden)
        )
    kv = size(text, "num_key_value_heads") if text.get("num_key_value_heads") else heads
    gates = heads if text.get("linear_num_key_heads") else 0  # of the output, in hybrid targets
    return hidden * head_dim(text) * (2 * heads + gates + 2 * kv)


_EXPERTS = ("num_experts", *_OTHER_EXPERTS)
_CHOSEN = ("num_experts_per_tok", "experts_per_token", "moe_topk", "moe_k")


def _feed_forward_of_a_token(text: Mapping[str, Any], layers: int, hidden: int) -> tuple[int, int]:
    """Count the parameters of dense and shared parts, and those of the experts that a token takes."""
    if not any(text.get(key) for key in _EXPERTS):
        return layers * 3 * hidden * size(text, "intermediate_size"), 0
    chosen = size(text, next((key for key in _CHOSEN if text.get(key)), _CHOSEN[0]))
    own = "moe_intermediate_size" if text.get("moe_intermediate_size") else "intermediate_size"
    shared = size(text, own) * size(text, "n_shared_experts") if text.get("n_shared_experts") else 0
    if text.get("shared_expert_intermediate_size"):
        shared += size(text, "shared_expert_intermediate_size")
    plain = size(text, "first_k_dense_replace") if text.get("first_k_dense_replace") else 0
    dense = plain * 3 * hidden * size(text, "intermediate_size") if plain else 0
    sparse = layers - min(plain, layers)
    return dense + sparse * 3 * hidden * shared, sparse * 3 * hidden * chosen * size(text, own)
