# SPDX-License-Identifier: Apache-2.0
"""Estimates how large a target's weights are only from its config, where its files are not at hand.

It knows Qwen3-Next, Qwen3.5, Qwen3.6 and, with their attention counted elsewhere, targets of full
attention; dense ones and mixtures of experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_eagle_ext.checkpoint.target_facts import text_config
from vllm_eagle_ext.errors import UnsupportedTargetError
from vllm_eagle_ext.memory.geometry import Target, head_dim, size

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
