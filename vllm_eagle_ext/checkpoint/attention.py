# SPDX-License-Identifier: Apache-2.0
"""Heads, windows and causality of a draft's layers, resolved as vLLM resolves them."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_eagle_ext.checkpoint.draft_config import DraftConfig, Format
from vllm_eagle_ext.drafter_classes import Backbone


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
    """Return the heads of every layer, with the backbone's defaults where the config is silent."""
    query = config.num_attention_heads
    kv, dim = backbone.kv_heads or query, backbone.head_dim or config.hidden_size // query
    return Heads(query, config.num_key_value_heads or kv, config.head_dim or dim)


def sliding_layers(config: DraftConfig, backbone: Backbone) -> list[bool]:
    """Tell for each layer whether it slides.

    `layer_types` decides, else the older keys if the backbone has them.
    """
    if config.layer_types is not None:
        return [kind == "sliding_attention" for kind in config.layer_types]
    first = backbone.first_sliding_layer
    if first is None or not config.use_sliding_window or config.sliding_window is None:
        return [False] * config.num_hidden_layers
    first = first if config.max_window_layers is None else config.max_window_layers
    return [layer >= first for layer in range(config.num_hidden_layers)]


def causal_layers(
    config: DraftConfig, backbone: Backbone, _format: Format
) -> tuple[LayerAttention, ...]:
    """Return one entry per layer of an autoregressive draft.

    A sliding layer without a window gets None, which a rule reports.
    """
    slides = sliding_layers(config, backbone)
    return tuple(LayerAttention(config.sliding_window if s else None, True) for s in slides)
