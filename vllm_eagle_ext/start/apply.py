# SPDX-License-Identifier: Apache-2.0
"""Writes what was decided to where both of vLLM's runners and all drafter classes read it."""

from __future__ import annotations

from dataclasses import asdict
from pkgutil import resolve_name
from typing import Any

from vllm_eagle_ext.draft import Case
from vllm_eagle_ext.draft.expected_tensors import belongs_to_quantised
from vllm_eagle_ext.draft.layer_ids import vllm_keys
from vllm_eagle_ext.draft.quantisation import named_for_vllm
from vllm_eagle_ext.errors import UnsupportedDraftError
from vllm_eagle_ext.families.parts.gate_rows import GatePlan
from vllm_eagle_ext.families.parts.strict_weights import LoadingPlan
from vllm_eagle_ext.families.resolved_marker import write_marker
from vllm_eagle_ext.start.vllm_says import words_of

_SECTIONS = ("mrope_section", "mrope_interleaved", "xdrope_section")


def apply_spec(config: Any, case: Case, *, strict: bool = True) -> None:
    """Write the decisions of a supported draft into its config.

    Args:
        config: vLLM's SpeculativeConfig, whose draft config is changed in place.
    """
    # Sizes, and the layers that are read.
    hf_config = config.draft_model_config.hf_config
    spec = case.spec
    hf_config.target_hidden_size = spec.target_hidden_size
    hf_config.draft_vocab_size = spec.head_rows
    if case.target.padding and not spec.drafter.is_vllms:
        hf_config.vocab_size = case.target.rows  # the width of its logits, on which samplers go by
    if getattr(hf_config, "hidden_act", None) is None:  # the speculators config class has no defaults
        hf_config.hidden_act = "silu"
    if spec.fuses_aux_states:
        for key, value in vllm_keys(spec.aux_layers).items():
            setattr(hf_config, key, value)
    # The draft's own depth where its file states the target's, without that one's layer types.
    if hf_config.num_hidden_layers != spec.num_layers:
        hf_config.num_hidden_layers = spec.num_layers
        hf_config.layer_types = ["full_attention"] * spec.num_layers
    # transformers drops the window where use_sliding_window is not set.
    if windows := [layer.window for layer in spec.layers if layer.window]:
        hf_config.sliding_window = windows[0]
    if spec.draft_window is not None:
        hf_config.layer_types = ["sliding_attention"] * spec.num_layers
    # What vLLM reads of its quantisation, its positions and its family.
    if spec.quantisation is not None:
        hf_config.quantization_config = named_for_vllm(case)
    if config.parallel_drafting:
        _drop_rope_sections(hf_config)
    resolve_name(spec.family.config_writer)(config, case)
    if not spec.drafter.is_vllms:  # whose classes load the weights by themselves
        write_marker(hf_config, weights=asdict(loading_plan(case, strict=strict)))
    hf_config.architectures = [spec.drafter.architecture]
    config.update_arch_()


def require_quantisation(config: Any, case: Case) -> None:
    """Let vLLM read the draft's quantisation, which it does after it has loaded the target.

    Raises:
        UnsupportedDraftError: vLLM cannot, with its words.
    """
    if case.spec.quantisation is None:
        return
    from vllm.config import VllmConfig

    try:
        VllmConfig.get_quantization_config(config.draft_model_config, config.draft_load_config)
    except Exception as error:
        words, keys = words_of(error)
        raise UnsupportedDraftError(
            field=f"{'.'.join(keys) or 'quant_method'} of the draft's quantization_config",
            value=case.spec.quantisation, allowed=f"what vLLM reads: {words}",
            remedy="state in config.json how its exporter quantised it, or ask its publisher",
        ) from error  # fmt: skip


def _drop_rope_sections(hf_config: Any) -> None:
    """Drop the sections of M-RoPE, which V1 refuses in drafts that make all tokens in one pass. V1
    drafts only for text, where all sections have the same position, and hands such drafts the first.
    REMOVE WHEN V1's `_raise_if_mrope` goes, or V1 goes."""
    for name in ("rope_parameters", "rope_scaling"):
        block = getattr(hf_config, name, None)
        if isinstance(block, dict):
            kept = {key: value for key, value in block.items() if key not in _SECTIONS}
            setattr(hf_config, name, kept)


def loading_plan(case: Case, *, strict: bool = True) -> LoadingPlan:
    """List the tensors to load: by the safetensors headers, else by what the config promises."""
    # The headers say what is there; without them some tensors may be missing.
    table, gate, heads = case.expected, case.spec.gate, case.spec.heads
    loaded = {name: expected for name, expected in table.items() if name != "t2d"}
    if case.has_tensors:
        required = {
            name: [list(header.shape)]
            for name, header in case.files.tensors.items()
            if name in loaded or belongs_to_quantised(case.spec, name, table)
        }
        optional: dict[str, list[list[int]]] = {}
    else:
        shareable = case.spec.hidden_size == case.spec.target_hidden_size
        own = () if shareable else ("embed_tokens.weight", "lm_head.weight")
        shapes = {name: [list(s) for s in expected.shapes] for name, expected in loaded.items()}
        optional = {n: shapes[n] for n, e in loaded.items() if e.optional and n not in own}
        required = {n: allowed for n, allowed in shapes.items() if n not in optional}
    return LoadingPlan(
        required=required,
        optional=optional,
        order=list(case.spec.aux_layers.order),
        gate=None
        if gate is None
        else asdict(GatePlan(gate.kind, gate.module, gate.layout, heads.query, heads.dim)),
        d2t=case.spec.vocabulary.map_kind,
        target_vocab_size=case.target.vocab_size,
        embedding_rows=case.target.rows,
        drop_unexpected=not strict,
        kept_ids=None if case.spec.kept_ids is None else list(case.spec.kept_ids),
    )
