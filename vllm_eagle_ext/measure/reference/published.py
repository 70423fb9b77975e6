# SPDX-License-Identifier: Apache-2.0
"""The reference of a published draft, from what its checkpoint says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from transformers import PreTrainedModel

from vllm_eagle_ext.draft.spec import DraftSpec
from vllm_eagle_ext.draft.tensors import COMPUTED
from vllm_eagle_ext.measure.reference.dflash import DFlash2Reference, DFlashReference, DSparkReference
from vllm_eagle_ext.measure.reference.eagle3 import (
    Eagle3Reference,
    PEagleReference,
    Recorded,
    read_draft_config,
    read_tensors,
)
from vllm_eagle_ext.measure.reference.rotary import rope_unsupported_reason
from vllm_eagle_ext.measure.reference.walk import ReferenceDrafter, embeddings_and_head

_THETA = {"llama": 1e4}  # of drafts that state none; other backbones have no default of the reference's
_SHARED = ("embed_tokens.weight", "lm_head.weight")  # with the target, unless the draft has its own
_MASK_EMBEDDING = "mask_embedding.pt"  # with the weights; vLLM's DFlash reads it in place of a token's


class NotComputedError(ValueError):
    """The checkpoint has something that the reference does not compute with; the message says what."""


def unsupported_reason(spec: DraftSpec, folder: Path) -> str | None:
    """Say why the reference cannot draft as this checkpoint; None: it can, if it uses each tensor."""
    if spec.family.reference is None:
        return f"there is no reference for {spec.title} drafts"
    if not spec.fuses_aux_states:
        return "there is no reference for drafts without aux layers"
    if spec.weights != "safetensors":
        return "the reference reads only safetensors"
    if spec.quantisation:
        return f"the reference computes in float32, the draft's weights are {spec.quantisation}"
    if spec.rope.theta is None and spec.drafter.backbone.name not in _THETA:
        return "rope_theta of the draft is not stated"
    if (folder / _MASK_EMBEDDING).exists():
        return f"the reference does not read {_MASK_EMBEDDING}"
    # Drafts that make all tokens in one pass are served without the sections.
    return rope_unsupported_reason(
        read_draft_config(folder), sections=not spec.family.drafts_in_parallel
    )


def load_reference(spec: DraftSpec, folder: Path, target: PreTrainedModel) -> ReferenceDrafter:
    """Load the reference that drafts as the spec says.

    Flags, heads, rope, windows and the order of aux layers are those of the spec.

    Raises:
        NotComputedError: there is an `unsupported_reason`, or a tensor that drafting does not look at.
    """
    if reason := unsupported_reason(spec, folder):
        raise NotComputedError(reason)
    assert spec.family.reference is not None
    reference = resolve_name(spec.family.reference)(spec, folder, target)
    unread = _unread(reference, spec)
    if unread:
        raise NotComputedError(f"the reference does not compute with {', '.join(unread)}")
    return reference


def load_eagle3(spec: DraftSpec, folder: Path, target: PreTrainedModel) -> Eagle3Reference:
    kind = PEagleReference if spec.family.drafts_in_parallel else Eagle3Reference
    reference = kind.load(folder, *embeddings_and_head(target))
    windows = tuple(layer.window for layer in spec.layers)
    read = _of_both(spec, reference) | {
        "target_ids": _target_ids(spec, folder, len(reference.lm_head)),
        "fc_norm": bool(spec.fc_norm),
        "norm_output": bool(spec.norm_output),
        "norm_before_residual": bool(spec.norm_before_residual),
        "gate_layout": spec.gate.layout if spec.gate and spec.gate.module == "q_proj" else None,
        "windows": windows if any(windows) else (),
    }
    if spec.family.drafts_in_parallel:
        read["mask_token"] = spec.mask_token_id
    return replace(reference, **read | _kept(spec, reference.lm_head))


def load_dflash(
    spec: DraftSpec,
    folder: Path,
    target: PreTrainedModel,
    kind: type[DFlashReference] = DFlashReference,
) -> DFlashReference:
    reference = kind.load(folder, *embeddings_and_head(target), spec.layers)
    read = _of_both(spec, reference) | {"layers": spec.num_layers, "mask_token": spec.mask_token_id}
    for field in ("embed_tokens", "lm_head"):
        if f"{field}.weight" in reference.weights:
            read[field] = reference.weights[f"{field}.weight"]
    read["embed_tokens"] = read.get("embed_tokens", reference.embed_tokens) * spec.embedding_scale
    if spec.vocabulary.map_kind is not None:
        read["target_ids"] = _target_ids(spec, folder, spec.vocabulary.size)
    read |= _kept(spec, read.get("lm_head", reference.lm_head))
    return replace(reference, **read)


def _kept(spec: DraftSpec, head: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the head's rows that the option `draft_vocabulary` keeps, and their ids."""
    if spec.kept_ids is None:
        return {}
    ids = torch.tensor(spec.kept_ids)
    return {"lm_head": head[ids], "target_ids": ids}


def load_dflash2(spec: DraftSpec, folder: Path, target: PreTrainedModel) -> DFlashReference:
    return load_dflash(spec, folder, target, DFlash2Reference)


def load_dspark(spec: DraftSpec, folder: Path, target: PreTrainedModel) -> DFlashReference:
    reference = load_dflash(spec, folder, target, DSparkReference)
    return replace(reference, samples_anchor=spec.samples_anchor)  # type: ignore[call-arg]


def _of_both(spec: DraftSpec, reference: Eagle3Reference | DFlashReference) -> dict[str, Any]:
    """Return the fields that both kinds have, as the spec reads them."""
    rope = spec.rope
    theta = _THETA[spec.drafter.backbone.name] if rope.theta is None else rope.theta
    rotary = replace(reference.rotary, theta=theta, kind=rope.kind, partial=rope.partial)
    return {
        "heads": spec.heads.query,
        "kv_heads": spec.heads.kv,
        "head_dim": spec.heads.dim,
        "rotary": rotary,
        "weights": in_order(reference.weights, spec.aux_layers.order),
    }


def in_order(weights: Mapping[str, torch.Tensor], order: Sequence[int]) -> dict[str, torch.Tensor]:
    """Put blocks of the fusing projection and its norms in the order of ascending aux layers.

    Args:
        order: of each aux layer, the block in the file.
    """
    found = dict(weights)
    for name in ("fc.weight", "input_norm.weight", "mask_hidden"):
        if name in weights:
            blocks = weights[name].chunk(len(order), dim=-1)
            found[name] = torch.cat([blocks[block] for block in order], dim=-1)
    for position, block in enumerate(order):
        if f"fc_norm.{block}.weight" in weights:
            found[f"fc_norm.{position}.weight"] = weights[f"fc_norm.{block}.weight"]
    return found


def _target_ids(spec: DraftSpec, folder: Path, size: int) -> torch.Tensor:
    ids = torch.arange(size)
    if spec.vocabulary.map_kind is None:
        return ids
    d2t = read_tensors(folder)["d2t"]
    return d2t if spec.vocabulary.map_kind == "absolute" else ids + d2t


def _unread(reference: Eagle3Reference | DFlashReference, spec: DraftSpec) -> list[str]:
    """Return the tensors of floats that a draft of two tokens after two rows does not need."""
    recorded = Recorded(reference.weights)
    trial: ReferenceDrafter = replace(reference, weights=recorded)
    states = [torch.zeros(3, spec.target_hidden_size)] * len(spec.aux_layers.layer_ids)
    with torch.inference_mode():
        trial.draft(1, 2, trial.true_rows([0, 0, 0], states))
    unused = {*reference.weights} - recorded.read - set(_SHARED)
    # vLLM builds a hidden_norm for each layer, too, and uses only the first layer's.
    kept = {name for name in unused if name.endswith(".hidden_norm.weight") and spec.family.has_flags}
    kept |= {name for name in unused if name.startswith("confidence_head.")}  # chooses no token
    return sorted(name for name in unused - kept if not name.endswith(COMPUTED))
