# SPDX-License-Identifier: Apache-2.0
"""The gate of a gated-attention draft: attention output times sigmoid(gate), before o_proj.

Its rows sit in q_proj next to the query's, or in a tensor of their own; there is one per element of
the attention output or one per head (Gated Attention, arXiv 2505.06708).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vllm_eagle_ext.checkpoint.attention import Heads
from vllm_eagle_ext.checkpoint.draft_files import DraftFiles

GateKind = Literal["elementwise", "headwise"]
GateLayout = Literal["interleaved", "concat"]

# Names that a gate of its own goes by, under `self_attn.`.
SEPARATE = ("gate", "g_proj", "gate_proj")
_DEFAULT: GateLayout = "interleaved"


@dataclass(frozen=True, slots=True)
class Gate:
    kind: GateKind
    module: str  # under self_attn: "q_proj", or one of SEPARATE
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
    files: DraftFiles, flat: Mapping[str, Any], heads: Heads, option: GateLayout | None = None
) -> Gate | None:
    """Read the gate from the first layer; the rules on shapes check that the others have the same."""
    kinds: dict[int, GateKind] = {heads.query * heads.dim: "elementwise", heads.query: "headwise"}
    layout, source = _layout(flat, option)
    for module in SEPARATE:
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


def _layout(flat: Mapping[str, Any], option: GateLayout | None) -> tuple[GateLayout, str]:
    if option is not None:
        return option, "option gate_layout"
    for block in ("", "eagle_config"):
        holder = flat.get(block) if block else flat
        stated = holder.get("gate_layout") if isinstance(holder, Mapping) else None
        if stated == "concat" or stated == "interleaved":
            return stated, f"{block}.gate_layout".strip(".")
    return _DEFAULT, "assumed"
