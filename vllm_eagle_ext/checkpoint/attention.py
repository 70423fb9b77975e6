# SPDX-License-Identifier: Apache-2.0
"""Heads, windows and causality of a draft's layers, resolved as vLLM resolves them.

One difference: speculators trains the full-attention layers of a DFlash draft bidirectionally and
only windowed ones causally, while vLLM makes one flag for all layers of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_eagle_ext.checkpoint.draft_config import DraftConfig, Format
from vllm_eagle_ext.checkpoint.families import Backbone

# What transformers' config classes assume, and vLLM with them.
_QWEN3_HEAD_DIM, _QWEN3_KV_HEADS, _QWEN3_WINDOW_LAYERS = 128, 32, 28


@dataclass(frozen=True, slots=True)
class Heads:
    query: int
    kv: int
    dim: int


@dataclass(frozen=True, slots=True)
class LayerAttention:
    window: int | None
    causal: bool


def read_heads(config: DraftConfig, backbone: Backbone) -> Heads:
    query = config.num_attention_heads
    is_qwen3 = backbone == "qwen3"
    default_kv = _QWEN3_KV_HEADS if is_qwen3 else query
    default_dim = _QWEN3_HEAD_DIM if is_qwen3 else config.hidden_size // query
    return Heads(query, config.num_key_value_heads or default_kv, config.head_dim or default_dim)


def read_layers(
    config: DraftConfig, backbone: Backbone, family: str, format_: Format
) -> tuple[LayerAttention, ...]:
    """One entry per draft layer; a sliding layer without a window gets None, which a rule reports."""
    slides = _sliding(config, backbone)
    if family != "dflash":
        return tuple(LayerAttention(config.sliding_window if s else None, True) for s in slides)
    dflash = config.dflash_config
    forced = dflash is not None and bool(dflash.use_swa) and not any(slides)
    windowed = [forced or s for s in slides]
    window = (dflash and dflash.swa_window_size) or config.sliding_window
    blanket = _blanket_causality(config, format_)
    return tuple(
        LayerAttention(window if is_windowed else None, slides_here if blanket is None else blanket)
        for is_windowed, slides_here in zip(windowed, slides, strict=True)
    )


def _sliding(config: DraftConfig, backbone: Backbone) -> list[bool]:
    """Without `layer_types`, transformers' Qwen3 config derives them from the older keys."""
    if config.layer_types is not None:
        return [kind == "sliding_attention" for kind in config.layer_types]
    derives = (
        backbone == "qwen3" and bool(config.use_sliding_window) and config.sliding_window is not None
    )
    first = _QWEN3_WINDOW_LAYERS if config.max_window_layers is None else config.max_window_layers
    return [derives and layer >= first for layer in range(config.num_hidden_layers)]


def _blanket_causality(config: DraftConfig, format_: Format) -> bool | None:
    """None: causal where the layer slides."""
    if format_ == "speculators":
        return False if config.sliding_window_non_causal else None
    if config.is_causal is not None:
        return config.is_causal
    return config.dflash_config.causal if config.dflash_config else None
