# SPDX-License-Identifier: Apache-2.0
"""Reads a draft's files into a DraftSpec."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vllm_eagle_ext.draft.attention import Gate, read_gate, read_heads, with_window
from vllm_eagle_ext.draft.draft_config import (
    FLAGS,
    DraftConfig,
    Flag,
    format_of,
    published_architecture,
    read_flag,
)
from vllm_eagle_ext.draft.draft_files import DraftFiles
from vllm_eagle_ext.draft.registry import choose_family
from vllm_eagle_ext.draft.rope_config import read_rope
from vllm_eagle_ext.draft.spec import AuxLayers, DraftSpec, Evidence, Family, Presence
from vllm_eagle_ext.draft.target_facts import TargetFacts
from vllm_eagle_ext.draft.tensors import HOLDS_WEIGHTS, integers
from vllm_eagle_ext.draft.vocabulary import Vocabulary, map_kind
from vllm_eagle_ext.families.drafter_classes import Drafter
from vllm_eagle_ext.options import Options

# What a target says of each of its layers, or of some.
_OF_LAYERS = ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers")
_LATER_LAYER = re.compile(r"layers\.0*[1-9]")


def with_own_depth(
    files: DraftFiles, flat: Mapping[str, Any], drafter: Drafter | None, target_layers: int
) -> Mapping[str, Any]:
    """Return the config with the draft's own depth in place of the target's.

    NeMo AutoModel writes the target's config, all of its layers, next to an EAGLE-3 draft of one layer
    that attends to all tokens. A draft that drafts in parallel may have several.

    Args:
        flat: flattened.
    """
    if drafter is None or format_of(files.config) != "published":
        return flat
    in_parallel = family_of(flat, drafter, files).drafts_in_parallel or flat.get("parallel_drafting")
    depth = flat.get("num_hidden_layers")
    states_the_targets = type(depth) is int and depth == target_layers > 1  # vLLM reads no 8.0
    if in_parallel or not states_the_targets or layers_in(files) != 1:
        return flat
    return {
        **{key: value for key, value in flat.items() if key not in _OF_LAYERS},
        "num_hidden_layers": 1,
    }


def with_padding_apart(files: DraftFiles, config: DraftConfig, target: TargetFacts) -> TargetFacts:
    """Return the target with the tokens that a draft knows, the rest of its rows as padding.

    A table or a map of the draft that is larger than its config's vocabulary contradicts that.
    """
    known = config.vocab_size
    tables = ("embed_tokens.weight", "lm_head.weight", "t2d")
    shapes = [files.tensors[name].shape for name in tables if name in files.tensors]
    d2t = tensor_integers(files, "d2t")
    is_beyond = bool(d2t) and map_kind(d2t or (), known) is None
    if known >= target.vocab_size or is_beyond or any(shape and shape[0] > known for shape in shapes):
        return target
    return replace(target, vocab_size=known, padding=target.vocab_size - known)


def layers_in(files: DraftFiles) -> int:
    """Return the number of layers in an EAGLE-3 draft's files; 0 of others, or if not readable."""
    if "layers.0.hidden_norm.weight" not in files.tensors:
        return 0
    later = {name.split(".")[1] for name in files.tensors if _LATER_LAYER.match(name)}
    return 1 + len(later)


def build_spec(
    files: DraftFiles,
    flat: Mapping[str, Any],
    config: DraftConfig,
    drafter: Drafter,
    target: TargetFacts,
    aux_layers: AuxLayers,
    options: Options,
    window: int | None,
) -> DraftSpec:
    """Put together what the parts say; whether they fit each other is for the rules.

    Args:
        flat: as `Case` has it.
        window: of the layers that were published without one.
    """
    # What decides the family: its flags and its gate.
    flags = {name: read_flag(files.config, name) for name in FLAGS}
    if options.norm_output != "checkpoint":
        places = flags["norm_output"].places
        flags["norm_output"] = Flag(options.norm_output, "option norm_output", places)
    heads = read_heads(config, drafter.backbone)
    gate = read_gate(files, flat, heads, options.gate_layout) if drafter.can_gate else None
    family = family_of(flat, drafter, files, gate, norm_output=flags["norm_output"].value)
    # What several of its fields need.
    format_, block = format_of(files.config), config.block_config
    layers = family.read_layers(config, drafter.backbone, format_)
    methods = config.speculators_config.proposal_methods if config.speculators_config else []
    scales = (block.input_embedding_scale, config.input_embedding_scale)  # as z-lab writes them
    quantisation = config.quantization_config
    return DraftSpec(
        model=files.model,
        architecture=published_architecture(files.config),
        format=format_,
        family=family,
        drafter=drafter,
        weights=files.weights,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        target_hidden_size=target.hidden_size,
        heads=heads,
        layers=layers if window is None else with_window(layers, window),
        aux_layers=aux_layers,
        fc_norm=flags["fc_norm"],
        norm_output=flags["norm_output"],
        norm_before_fc=flags["norm_before_fc"],
        norm_before_residual=flags["norm_before_residual"],
        gate=gate,
        vocabulary=_read_vocabulary(files, config, target),
        embeddings=_presence(files, "embed_tokens"),
        head=_presence(files, "lm_head"),
        rope=read_rope(flat),
        block_size=config.block_size or block.block_size or config.dspark_block_size,
        samples_anchor=family.samples_the_anchor(config, format_),
        mask_token_id=_mask_token(config),
        embedding_scale=next((scale for scale in scales if scale is not None), 1.0),
        trained_k=methods[0].speculative_tokens if methods else None,
        trained_length=trained_length(flat, config),
        draft_window=window if any(layer.window is None for layer in layers) else None,
        quantisation=None
        if quantisation is None
        else str(quantisation.get("quant_method", "quantised")),
    )


def family_of(
    flat: Mapping[str, Any],
    drafter: Drafter,
    files: DraftFiles | None = None,
    gate: Gate | None = None,
    *,
    norm_output: bool = False,
) -> Family:
    """Return the draft's family, or the plainest of its drafter class where only the config is known.

    Depth and layer ids are read before gate and flags. What they need of the family is the same in all
    families that differ only in these.
    """
    evidence = Evidence(
        architecture=published_architecture(flat),
        speculators_type=flat.get("speculators_model_type"),
        has_mask_hidden=files is not None and "mask_hidden" in files.tensors,
        has_gate=gate is not None,
        norm_output=norm_output,
    )
    return choose_family(drafter, evidence)


def trained_length(flat: Mapping[str, Any], config: DraftConfig) -> int | None:
    """Return the positions in a draft's config, those before its rope was stretched."""
    return read_rope(flat).original_length or config.max_position_embeddings


def _read_vocabulary(files: DraftFiles, config: DraftConfig, target: TargetFacts) -> Vocabulary:
    size, d2t = config.draft_vocab_size or config.vocab_size, tensor_integers(files, "d2t")
    if not d2t or size >= target.vocab_size:
        return Vocabulary(size, None)
    return Vocabulary(size, map_kind(d2t, target.vocab_size, marked_ids(files)))


def tensor_integers(files: DraftFiles, name: str) -> tuple[int, ...] | None:
    """Return the values of a small tensor; None if it is absent or holds no integers."""
    raw = files.values.get(name)
    return None if raw is None else integers(raw, files.tensors[name].dtype)


def marked_ids(files: DraftFiles) -> list[int] | None:
    """Return the target ids that t2d marks; None without t2d."""
    marks = tensor_integers(files, "t2d")
    return None if marks is None else [target_id for target_id, mark in enumerate(marks) if mark]


def _presence(files: DraftFiles, module: str) -> Presence:
    if files.weights == "bin":
        return "unknown"
    return "own" if any(f"{module}.{kind}" in files.tensors for kind in HOLDS_WEIGHTS) else "shared"


def _mask_token(config: DraftConfig) -> int | None:
    """Return the first that is stated, in vLLM's order."""
    nested = config.block_config.mask_token_id
    top = (config.mask_token_id, config.dspark_noise_token_id, config.pard_token, config.ptd_token_id)
    return next((token for token in (nested, *top) if token is not None), None)
