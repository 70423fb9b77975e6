# SPDX-License-Identifier: Apache-2.0
"""The reference of a published draft, from what its checkpoint says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from vllm_eagle_ext.checkpoint.spec import DraftSpec
from vllm_eagle_ext.reference.eagle3 import Eagle3Reference
from vllm_eagle_ext.reference.files import read_tensors
from vllm_eagle_ext.reference.walk import DFlashWalk, Drafter, embeddings_and_head

FAMILIES = ("native", "post-norm", "gated", "dflash")
_ROPES = {"eagle3": ("default",), "dflash": ("default", "yarn")}


def obstacle(spec: DraftSpec) -> str | None:
    """Why the reference cannot draft as this checkpoint; None: it can."""
    if spec.family not in FAMILIES:
        return f"there is no reference for {spec.title} drafts"
    if not spec.fuses_aux_states:
        return "there is no reference for drafts without aux layers"
    if spec.weights != "safetensors":
        return "the reference reads safetensors alone"
    if spec.quantisation:
        return f"the reference computes in float32, the draft's weights are {spec.quantisation}"
    if spec.rope.kind not in _ROPES[spec.method] or spec.rope.partial != 1:
        return f"the reference has no rope of this kind ({spec.rope})"
    if spec.method == "eagle3" and any(layer.window for layer in spec.layers):
        return "the reference has no sliding windows in EAGLE-3 drafts"
    return None


def load_reference(spec: DraftSpec, folder: Path, target: PreTrainedModel) -> Drafter:
    """Flags, heads, rope and windows are those of the spec.

    Args:
        spec: without an `obstacle`.
    """
    shape: dict[str, Any] = {
        "heads": spec.heads.query,
        "kv_heads": spec.heads.kv,
        "head_dim": spec.heads.dim,
    }
    if spec.rope.theta is not None:
        shape["theta"] = spec.rope.theta
    if spec.method == "dflash":
        return _dflash(spec, folder, target, shape)
    reference = Eagle3Reference.load(folder, *embeddings_and_head(target))
    return replace(
        reference,
        target_ids=_target_ids(spec, folder, len(reference.lm_head)),
        fc_norm=bool(spec.fc_norm),
        norm_output=bool(spec.norm_output),
        norm_before_residual=bool(spec.norm_before_residual),
        gate_layout=spec.gate.layout if spec.gate and spec.gate.module == "q_proj" else None,
        **shape,
    )


def _dflash(spec: DraftSpec, folder: Path, target: PreTrainedModel, shape: dict[str, Any]) -> DFlashWalk:
    walk = DFlashWalk.load(folder, target, spec.layers)
    weights = walk.reference.weights
    own = {"embed_tokens": "embed_tokens.weight", "lm_head": "lm_head.weight"}
    shape |= {field: weights[name] for field, name in own.items() if name in weights}
    embeddings = shape.get("embed_tokens", walk.reference.embed_tokens)
    shape["embed_tokens"] = embeddings * spec.embedding_scale
    return DFlashWalk(replace(walk.reference, **shape))


def _target_ids(spec: DraftSpec, folder: Path, size: int) -> torch.Tensor:
    ids = torch.arange(size)
    if spec.vocabulary.map_kind is None:
        return ids
    d2t = read_tensors(folder)["d2t"]
    return d2t if spec.vocabulary.map_kind == "absolute" else ids + d2t
