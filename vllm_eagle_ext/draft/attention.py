# SPDX-License-Identifier: Apache-2.0
"""Heads, windows, causality and gate of a draft's layers, resolved as vLLM resolves them.

The gate of a gated-attention draft: attention output times sigmoid(gate), before o_proj. Its rows sit in
q_proj next to the query's, or in a tensor of their own; there is one per element of the attention output
or one per head (Gated Attention, arXiv 2505.06708).

`draft_window` lets a draft attend only to the last tokens, whatever the length of the text. It changes
what is drafted, and so how much of it is accepted; it never changes the text, which the target verifies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from vllm_eagle_ext.draft.draft_config import DraftConfig, Format
from vllm_eagle_ext.draft.draft_files import DraftFiles
from vllm_eagle_ext.families.drafter_classes import Backbone, Drafter


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
    """Tell for each layer whether it slides: by `layer_types`, else by its backbone's older keys."""
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


GateKind = Literal["elementwise", "headwise"]
GateLayout = Literal["interleaved", "concat"]

# Names that a gate of its own goes by, under `self_attn.`.
SEPARATE_GATES = ("gate", "g_proj", "gate_proj")
# What has an entry per row of its module, or per block of rows; the rest of a quantised module has not.
ROWS = ("weight", "weight_packed", "bias", "weight_scale", "weight_scale_inv")
_DEFAULT_LAYOUT: GateLayout = "interleaved"


@dataclass(frozen=True, slots=True)
class Gate:
    kind: GateKind
    module: str  # under self_attn: "q_proj", or one of SEPARATE_GATES
    layout: GateLayout  # of q_proj's rows: per head [q | gate], or all queries before all gates
    layout_source: str  # the option, a key of config.json, or "assumed"

    @property
    def is_assumed(self) -> bool:
        return self.layout_source == "assumed"

    def rows(self, heads: Heads) -> int:
        return heads.query * (heads.dim if self.kind == "elementwise" else 1)

    def __str__(self) -> str:
        if self.module != "q_proj":
            return f"{self.kind}, in {self.module}"
        return f"{self.kind}, in q_proj, {self.layout} ({self.layout_source})"


def read_gate(
    files: DraftFiles, flat: Mapping[str, Any], heads: Heads, option: GateLayout | None
) -> Gate | None:
    """Read the gate from the first layer; the rules on shapes check that the others have the same."""
    kinds: dict[int, GateKind] = {heads.query * heads.dim: "elementwise", heads.query: "headwise"}
    layout, source = _gate_layout(flat, option)
    for module in SEPARATE_GATES:
        if kind := kinds.get(_gate_rows(files, module)):
            return Gate(kind, module, layout, source)
    kind = kinds.get(_gate_rows(files, "q_proj") - heads.query * heads.dim)
    if kind is None and files.weights == "bin" and flat.get("attn_output_gate"):
        kind = "elementwise"
    return Gate(kind, "q_proj", layout, source) if kind else None


def _gate_rows(files: DraftFiles, module: str) -> int:
    names = (f"layers.0.self_attn.{module}.{kind}" for kind in ("weight", "weight_packed"))
    shapes = [files.tensors[name].shape for name in names if name in files.tensors]
    return shapes[0][0] if shapes and shapes[0] else 0


def _gate_layout(flat: Mapping[str, Any], option: GateLayout | None) -> tuple[GateLayout, str]:
    if option is not None:
        return option, "option gate_layout"
    for block in ("", "eagle_config"):
        holder = flat.get(block) if block else flat
        layout = holder.get("gate_layout") if isinstance(holder, Mapping) else None
        if layout == "concat" or layout == "interleaved":
            return layout, f"{block}.gate_layout".strip(".")
    return _DEFAULT_LAYOUT, "assumed"


WindowOption = int | Literal["auto"] | None
WINDOW_OPTION = "additional_config.eagle_ext.draft_window"


def asked_window(
    option: WindowOption, trained_length: int | None, max_model_len: int | None
) -> int | None:
    """Return the tokens that the option asks for; None: the draft attends as it was published.

    "auto" is what the draft was trained on, where its config says so and texts may be longer.
    """
    if option != "auto":
        return option
    if trained_length is None or (max_model_len is not None and max_model_len <= trained_length):
        return None
    return trained_length


def can_have_a_window(drafter: Drafter) -> bool:
    """Tell whether vLLM has windows for the draft: none for latent attention or in its own classes."""
    return drafter.backbone.has_kv_heads and not drafter.uses_vllm_class


def with_window(layers: Sequence[LayerAttention], window: int) -> tuple[LayerAttention, ...]:
    """Give a window to the layers that were published without one; published windows stay."""
    return tuple(replace(layer, window=layer.window or window) for layer in layers)
