# SPDX-License-Identifier: Apache-2.0
"""The reference of a published draft, from what its checkpoint says, and the states that it drafts from.

The target runs through Hugging Face, which shows its residual stream at the input of any layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedModel,
)

from vllm_eagle_ext.draft.spec import DraftSpec
from vllm_eagle_ext.draft.tensors import COMPUTED
from vllm_eagle_ext.measure.reference.dflash import DFlashReference, DSparkReference
from vllm_eagle_ext.measure.reference.eagle3 import (
    Recorded,
    Reference,
    read_draft_config,
    read_tensors,
)
from vllm_eagle_ext.measure.reference.rotary import rope_unsupported_reason

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


def load_reference(spec: DraftSpec, folder: Path, target: PreTrainedModel) -> Reference:
    """Load the reference that drafts as the spec says.

    Flags, heads, rope, windows and the order of aux layers are those of the spec.

    Raises:
        NotComputedError: there is an `unsupported_reason`, or a tensor that drafting does not look at.
    """
    if reason := unsupported_reason(spec, folder):
        raise NotComputedError(reason)
    assert spec.family.reference is not None
    loaded = resolve_name(spec.family.reference).load(folder, *embeddings_and_head(target))
    read, windows = _of_both(spec, folder, loaded), [layer.window for layer in spec.layers]
    if isinstance(loaded, DFlashReference):
        read |= {
            "layers": spec.num_layers,
            "causal": [layer.causal for layer in spec.layers],
            "windows": windows,
            "embed_tokens": loaded.embed_tokens * spec.embedding_scale,
        }
    else:
        read |= {
            "fc_norm": bool(spec.fc_norm),
            "norm_output": bool(spec.norm_output),
            "norm_before_residual": bool(spec.norm_before_residual),
            "gate_layout": spec.gate.layout if spec.gate and spec.gate.module == "q_proj" else None,
            "windows": windows if any(windows) else (),
        }
    if spec.family.drafts_in_parallel:
        read["mask_token"] = spec.mask_token_id
    if isinstance(loaded, DSparkReference):
        read["samples_anchor"] = spec.samples_anchor
    reference: Reference = replace(loaded, **read)
    if unread := _unread(reference, spec):
        raise NotComputedError(f"the reference does not compute with {', '.join(unread)}")
    return reference


def _of_both(spec: DraftSpec, folder: Path, reference: Reference) -> dict[str, Any]:
    """Return the fields that both kinds have, as the spec reads them."""
    rope, head = spec.rope, reference.lm_head
    theta = _THETA[spec.drafter.backbone.name] if rope.theta is None else rope.theta
    # The target's ids of the head's rows, of which `draft_vocabulary` keeps some.
    ids = torch.arange(len(head))
    if spec.vocabulary.map_kind is not None:
        d2t = read_tensors(folder)["d2t"]
        ids = d2t if spec.vocabulary.map_kind == "absolute" else ids + d2t
    if spec.kept_ids is not None:
        ids = torch.tensor(spec.kept_ids)
        head = head[ids]
    return {
        "heads": spec.heads.query,
        "kv_heads": spec.heads.kv,
        "head_dim": spec.heads.dim,
        "rotary": replace(reference.rotary, theta=theta, kind=rope.kind, partial=rope.partial),
        "weights": in_order(reference.weights, spec.aux_layers.order),
        "lm_head": head,
        "target_ids": ids,
    }


def in_order(weights: Mapping[str, torch.Tensor], order: Sequence[int]) -> dict[str, torch.Tensor]:
    """Put blocks of the fusing projection and its norms in the order of ascending aux layers.

    Args:
        order: of each aux layer, the block in the file.
    """
    ordered = dict(weights)
    for name in ("fc.weight", "input_norm.weight", "mask_hidden"):
        if name in weights:
            blocks = weights[name].chunk(len(order), dim=-1)
            ordered[name] = torch.cat([blocks[block] for block in order], dim=-1)
    for position, block in enumerate(order):
        if f"fc_norm.{block}.weight" in weights:
            ordered[f"fc_norm.{position}.weight"] = weights[f"fc_norm.{block}.weight"]
    return ordered


def _unread(reference: Reference, spec: DraftSpec) -> list[str]:
    """Return the tensors of floats that a draft of two tokens after two rows does not need."""
    recorded = Recorded(reference.weights)
    trial = replace(reference, weights=recorded)
    states = [torch.zeros(3, spec.target_hidden_size)] * len(spec.aux_layers.layer_ids)
    with torch.inference_mode():
        trial.draft(1, 2, trial.true_rows([0, 0, 0], states))
    unused = {*reference.weights} - recorded.read - set(_SHARED)
    # vLLM builds a hidden_norm for each layer, too, and uses only the first layer's.
    kept = {name for name in unused if name.endswith(".hidden_norm.weight") and spec.family.has_flags}
    kept |= {name for name in unused if name.startswith("confidence_head.")}  # chooses no token
    return sorted(name for name in unused - kept if not name.endswith(COMPUTED))


def embeddings_and_head(target: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    embeddings: Any = target.get_input_embeddings()
    head: Any = target.get_output_embeddings()
    return embeddings.weight.data, head.weight.data


def accepted_length(draft: Sequence[int], wanted: Sequence[int]) -> int:
    pairs = zip(draft, wanted, strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


def load_target(folder: Path | str) -> PreTrainedModel:
    """Load the bf16 weights in fp32. Some models with images have no class for only text."""
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)  # and asks nobody
    has_text_class = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    auto = AutoModelForCausalLM if has_text_class else AutoModelForImageTextToText
    return auto.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False).eval()


def layers_of(model: PreTrainedModel) -> Sequence[torch.nn.Module]:
    """Return the text model's layers, where there are other models next to it."""
    layers: Sequence[torch.nn.Module] = getattr(model.model, "language_model", model.model).layers
    return layers


@torch.inference_mode()
def residual_stream(
    model: PreTrainedModel, tokens: Sequence[int], layer_ids: Sequence[int]
) -> list[torch.Tensor]:
    """Return the target's states per aux layer, [T, Ht].

    Layer id N stands for the last layer's output, before the final norm.
    """
    layers = layers_of(model)
    seen: dict[int, torch.Tensor] = {}

    def entering(layer_id: int) -> Callable[..., None]:
        def hook(_module: Any, args: Any, kwargs: Any) -> None:
            seen[layer_id] = (args[0] if args else kwargs["hidden_states"])[0]

        return hook

    def leaving(_module: Any, _args: Any, output: Any) -> None:
        seen[len(layers)] = (output[0] if isinstance(output, tuple) else output)[0]

    handles = [
        layer.register_forward_pre_hook(entering(b), with_kwargs=True) for b, layer in enumerate(layers)
    ]
    handles.append(layers[-1].register_forward_hook(leaving))
    try:
        model(torch.tensor([list(tokens)]), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return [seen[b].view(len(tokens), -1) for b in layer_ids]
