# SPDX-License-Identifier: Apache-2.0
"""Lists where vLLM 0.32 and 0.33 without this package read a draft otherwise than it was meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_eagle_ext.draft.draft_config import flatten
from vllm_eagle_ext.draft.layer_ids import ANGELSLIM_KEY, IDS_KEY
from vllm_eagle_ext.draft.registry import config_blocks, own_model_types
from vllm_eagle_ext.draft.silent_keys import LAYER_BLOCK, ROPES
from vllm_eagle_ext.draft.spec import Case
from vllm_eagle_ext.draft.tensors import COMPUTED

# Published architectures that vLLM's registry lacks, also with its name for the method in front.
UNKNOWN_ARCHITECTURES = {
    "CosyVoice3Eagle3LlamaForCausalLM", "LlamaEagle3DraftModel", "GptOssEagle3DraftModel",
    "PEagleDraftModel", "PeagleLlamaForCausalLM", "PeagleQwen3ForCausalLM", "Qwen3Eagle3Model",
    "DeepseekV3Eagle3DraftModel", "Qwen3DFlashDraftModel", "QwenDFlashDraftModel",
    "Qwen3DFlash2DraftModel",
}  # fmt: skip
# Keys with a default at whose nulls a start stops. vLLM may be absent; `test_nulls.py` asks it.
NOT_NULL = (
    "attention_bias", "attention_dropout", "auto_map", "hidden_act", "initializer_range",
    "max_position_embeddings", "max_window_layers", "mlp_bias", "rope_theta", "tie_word_embeddings",
    "use_cache", "use_sliding_window",
)  # fmt: skip


def stock_gaps(case: Case) -> list[str]:
    """Return what vLLM without this package gets wrong; nothing where it serves the draft rightly."""
    gaps = [*_layer_gaps(case), *_weights(case)]
    gaps += [f"it knows no tensor {name}" for name in unread_names(case)[:1]]
    gaps += _names(case) if case.spec.format == "published" else []
    if next(_nulls(_layer_block(case)), None):
        gaps.append("nulls stop or mislead transformers or vLLM at keys that config.json need not state")
    if case.spec.family.has_flags:
        gaps += _flags(case)
    elif (
        case.spec.family.method == "dflash"
        and case.spec.format == "speculators"
        and case.config.sliding_window_non_causal is False
    ):
        gaps.append("sliding_window_non_causal is taken to mean that every layer is causal")
    return gaps


def _nulls(block: Mapping[str, Any]) -> Iterator[str]:
    yield from (key for key in NOT_NULL if block.get(key, "") is None)
    for key in (*ROPES, *config_blocks()):
        if isinstance(inner := block.get(key), Mapping) and None in inner.values():
            yield key


def _layer_gaps(case: Case) -> Iterator[str]:
    layers, top = case.spec.aux_layers, case.flat.get(IDS_KEY)
    if layers.is_reordered:
        yield "layers are captured in ascending order, which the blocks of fc do not follow"
    if not case.spec.family.has_flags or layers.published_ids is None:
        return
    if top is None and case.flat.get(ANGELSLIM_KEY) is not None:
        yield f"{ANGELSLIM_KEY} is not read"
    elif top is None:
        yield "layer ids nested in eagle_config are read by the V1 runner only, one layer low"
    elif list(layers.layer_ids) != sorted(layers.published_ids):
        yield "layer ids are read as those of inputs"
    elif len(layers.layer_ids) != 3 and not _layer_block(case).get("num_aux_hidden_states"):
        yield "the width of fc follows num_aux_hidden_states, which is missing"


def _layer_block(case: Case) -> Mapping[str, Any]:
    """Return the part of config.json that vLLM hands to its class."""
    config = case.files.config
    return config if case.spec.format == "published" else config[LAYER_BLOCK]


def _names(case: Case) -> Iterator[str]:
    config, spec = case.files.config, case.spec
    if spec.architecture in UNKNOWN_ARCHITECTURES:
        yield f"it has no class {spec.architecture}"
    if config.get("model_type") in own_model_types():
        yield f"it knows no model type {config['model_type']}"
    if flatten(config).get("num_hidden_layers") != spec.num_layers:
        yield "num_hidden_layers is the target's, and layers without weights are built"
    # transformers drops the window there.
    drops = config.get("model_type") == "qwen3" and not config.get("use_sliding_window")
    if drops and any(layer.window for layer in spec.layers):
        yield "windows are dropped without use_sliding_window"


def _flags(case: Case) -> Iterator[str]:
    config, first = case.files.config, case.files.config.get("eagle_config") or {}
    for name, flag in case.spec.flags.items():
        taken = name == "norm_before_residual" and config.get("speculators_model_type") == "eagle3"
        read = config.get(name, taken)
        if flag.value != bool(first.get(name, read) if name == "norm_before_fc" else read):
            yield f"{name} is read at top level of config.json only"
    if not case.spec.fuses_aux_states:
        yield "the V2 runner of 0.32 hands over aux states, which the draft does not read"
    if case.spec.family.asks_for_parallel_drafting and (case.spec.fc_norm or case.spec.norm_output):
        yield "fc_norm and norm_output of a P-EAGLE draft are dropped"


def unread_names(case: Case) -> list[str]:
    """Return the published names that vLLM's loaders do not take for what they are.

    A t2d is dropped, whatever stands before it; a map that is not called `d2t` may be, without a word.
    """
    renamed = ("midlayer.",) if case.spec.family.has_flags else ("midlayer.", "encoder.")
    return [
        header.published
        for name, header in case.files.tensors.items()
        if header.published != name
        and not header.published.startswith(renamed)
        and not name.endswith((*COMPUTED, "t2d"))
    ]


def _weights(case: Case) -> Iterator[str]:
    if case.spec.vocabulary.map_kind == "absolute":
        yield "d2t is read as offsets"
    if "d2t" in case.files.tensors and not case.is_reduced:
        yield "a draft with a whole vocabulary and a d2t is not loaded"
    if case.spec.embedding_scale != 1 and not case.spec.drafter.uses_vllm_class:
        yield "input_embedding_scale is read for DFlash 2 only"
    if case.spec.gate:
        yield "the gate of the attention output is dropped"
