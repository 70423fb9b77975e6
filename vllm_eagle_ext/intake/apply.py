# SPDX-License-Identifier: Apache-2.0
"""Writes what was decided where both of vLLM's runners and all drafter classes read it."""

from __future__ import annotations

from typing import Any

from vllm_eagle_ext.checkpoint import Case
from vllm_eagle_ext.checkpoint.aux_layers import IDS_KEY, OUTPUT_IDS_KEY
from vllm_eagle_ext.checkpoint.flags import FLAGS
from vllm_eagle_ext.checkpoint.tensors import expected_tensors
from vllm_eagle_ext.stamp import write_stamp


def apply_spec(config: Any, case: Case, *, strict: bool = True) -> None:
    """config: vLLM's SpeculativeConfig, whose draft config is changed in place."""
    hf_config = config.draft_model_config.hf_config
    spec = case.spec
    hf_config.target_hidden_size = spec.target_hidden_size
    hf_config.draft_vocab_size = spec.vocabulary.size
    if getattr(hf_config, "hidden_act", None) is None:  # the speculators config class has no defaults
        hf_config.hidden_act = "silu"
    if spec.fuses_aux_states:
        setattr(hf_config, IDS_KEY, list(spec.aux_layers.boundaries))
        hf_config.num_aux_hidden_states = len(spec.aux_layers.boundaries)
    windows = [layer.window for layer in spec.layers if layer.window]
    if windows:  # transformers drops the key where use_sliding_window is not set
        hf_config.sliding_window = windows[0]
    if spec.method == "dflash":
        _apply_dflash(hf_config, case)
    else:
        _apply_eagle3(hf_config, case)
    write_stamp(hf_config, weights=loading_plan(case, strict=strict))
    hf_config.architectures = [spec.drafter]
    config.update_arch_()


def _apply_eagle3(hf_config: Any, case: Case) -> None:
    spec = case.spec
    flags = {name: spec.flags[name].value for name in FLAGS}
    for name, value in flags.items():
        setattr(hf_config, name, value)
    nested = dict(getattr(hf_config, "eagle_config", None) or {})
    nested.pop(IDS_KEY, None)
    if spec.fuses_aux_states:
        nested[IDS_KEY] = list(spec.aux_layers.boundaries)
    nested["use_aux_hidden_state"] = spec.fuses_aux_states
    nested["norm_before_fc"] = flags["norm_before_fc"]  # read here first
    hf_config.eagle_config = nested


def _apply_dflash(hf_config: Any, case: Case) -> None:
    spec = case.spec
    nested = dict(getattr(hf_config, "dflash_config", None) or {})
    nested[OUTPUT_IDS_KEY] = [boundary - 1 for boundary in spec.aux_layers.boundaries]
    nested["mask_token_id"] = spec.mask_token_id
    if spec.format == "speculators":
        nested.pop("causal", None)  # vLLM's blanket flag; without it causality goes by layer type
        if not any(layer.causal for layer in spec.layers):
            nested["causal"] = False
    hf_config.dflash_config = nested
    # vLLM 0.32 raises this for EAGLE-3 drafts only: positions beyond it lie outside the rope table.
    stated = getattr(hf_config, "max_position_embeddings", None) or 0
    hf_config.max_position_embeddings = max(stated, case.setting.max_model_len or 0)


def loading_plan(case: Case, *, strict: bool = True) -> dict[str, Any]:
    """`LoadingPlan` as JSON: of safetensors the headers, of other files what the config promises."""
    table = expected_tensors(case.spec, case.config, case.target.vocab_size)
    if case.has_tensors:
        found = {
            name: list(header.shape)
            for name, header in case.files.tensors.items()
            if name in table or case.spec.quantisation is not None
        }
        required, optional = found, {}
    else:
        lendable = case.spec.hidden_size == case.spec.target_hidden_size
        own = () if lendable else ("embed_tokens.weight", "lm_head.weight")
        optional = {n: list(e.shape) for n, e in table.items() if e.optional and n not in own}
        required = {n: list(e.shape) for n, e in table.items() if n not in optional}
    required.pop("t2d", None)
    return {
        "required": required,
        "optional": optional,
        "order": list(case.spec.aux_layers.order),
        "gate": _gate_plan(case),
        "target_vocab_size": case.target.vocab_size,
        "drop_unexpected": not strict,
    }


def _gate_plan(case: Case) -> dict[str, Any] | None:
    gate, heads = case.spec.gate, case.spec.heads
    if gate is None:
        return None
    return {
        "kind": gate.kind,
        "module": gate.module,
        "layout": gate.layout,
        "heads": heads.query,
        "head_dim": heads.dim,
    }
