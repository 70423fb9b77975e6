"""Every rule, by a valid draft of which one thing is broken."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.checkpoints import HEAD_DIM, HEADS, HIDDEN, VOCAB
from tests.support.drafts import FAMILIES, LATENT, MASK_TOKEN, TARGET, Draft, inspect, valid_draft, write
from vllm_eagle_ext.checkpoint import (
    Inspection,
    Setting,
    Severity,
    TargetFacts,
    inspect_draft,
    read_draft_files,
)
from vllm_eagle_ext.checkpoint.files import DraftFiles
from vllm_eagle_ext.checkpoint.headers import TensorHeader
from vllm_eagle_ext.checkpoint.rules import EARLY_RULES, RULES

# rule -> severity, and whether an engine would start with it
TABLE: dict[str, tuple[str, bool]] = {
    "architecture_is_named": ("error", False),
    "speculators_type_is_named": ("error", False),
    "architecture_is_served": ("error", False),
    "model_type_is_readable": ("error", False),
    "model_type_is_usual": ("warning", True),
    "method_fits_the_architecture": ("error", False),
    "config_is_well_formed": ("error", False),
    "aux_ids_are_boundaries": ("error", False),
    "tensors_are_complete": ("error", False),
    "tensors_are_expected": ("error", True),
    "tensor_shapes_fit": ("error", False),
    "attention_is_not_narrowed": ("error", False),
    "gate_matches_its_flag": ("error", False),
    "gate_layout_is_stated": ("warning", True),
    "gate_layouts_agree": ("error", False),
    "gate_has_the_heads_rows": ("error", False),
    "gated_rows_can_be_moved": ("error", False),
    "qweights_fit": ("error", False),
    "tensor_dtypes_fit": ("error", False),
    "small_tensors_are_finite": ("error", False),
    "fc_reads_every_aux_layer": ("error", False),
    "bias_is_called_attention_bias": ("error", False),
    "mla_sizes_are_stated": ("error", False),
    "weights_can_be_checked": ("warning", True),
    "flags_agree": ("error", True),
    "one_kind_of_input_norm": ("error", True),
    "mla_has_no_norm_before_fc": ("error", False),
    "norms_need_aux_states": ("error", False),
    "fc_norms_match_their_flag": ("error", False),
    "input_norm_matches_its_flag": ("error", False),
    "norm_output_is_unambiguous": ("warning", True),
    "norm_before_residual_is_stated": ("warning", True),
    "aux_layers_are_stated": ("warning", True),
    "aux_ids_may_be_boundaries": ("warning", True),
    "aux_order_is_restored": ("note", True),
    "aux_count_is_consistent": ("error", False),
    "draft_vocabulary_fits": ("error", False),
    "d2t_present_iff_reduced": ("error", False),
    "d2t_is_a_map": ("error", False),
    "d2t_ascends": ("warning", True),
    "d2t_is_converted": ("note", True),
    "d2t_agrees_with_t2d": ("error", True),
    "head_is_present": ("error", False),
    "embeddings_can_be_shared": ("error", False),
    "lent_parts_are_usual": ("warning", True),
    "tied_embeddings_are_ignored": ("note", True),
    "tokenizers_agree": ("error", True),
    "target_width_fits": ("error", False),
    "target_depth_fits": ("error", True),
    "eagle3_is_causal": ("error", False),
    "rope_is_stated": ("warning", True),
    "rope_matches_the_target": ("warning", True),
    "head_dim_is_stated": ("note", True),
    "heads_divide": ("error", False),
    "layer_types_are_complete": ("error", False),
    "trained_length_covers_max_model_len": ("warning", True),
    "k_is_within_the_trained_unroll": ("warning", True),
    "quantised_weights_are_there": ("error", False),
    "quantised_weights_have_scales": ("error", False),
    "scales_are_numbers": ("error", False),
    "scales_fit_their_weights": ("error", False),
    "quantisation_names_match": ("error", False),
    "quantised_fc_is_in_order": ("error", False),
    "runner_serves_it": ("error", False),
    "runner_is_particular": ("note", True),
    "k_is_within_the_block": ("error", True),
    "block_size_is_stated": ("warning", True),
    "block_size_is_consistent": ("error", False),
    "mask_token_is_in_the_vocabulary": ("error", False),
    "mask_token_is_unambiguous": ("error", False),
    "causality_is_per_layer": ("note", True),
    "anchor_is_not_sampled": ("error", False),
    "dflash_reads_aux_states": ("error", False),
    "final_state_is_not_normed": ("warning", True),
    "parallel_drafting_is_asked_for": ("warning", True),
}
WITHOUT_A_FUNCTION = {"config_is_well_formed", "aux_ids_are_boundaries"}

Change = Callable[[Draft], object]
IDS = "eagle_config.eagle_aux_hidden_state_layer_ids"
TOP_IDS = "eagle_aux_hidden_state_layer_ids"
ATTENTION, LAYER = "midlayer.self_attn", "transformer_layer_config"
IGNORE = "quantization_config.ignore"


def _holder(draft: Draft, path: str) -> tuple[dict[str, Any], str]:
    *blocks, name = path.split(".")
    holder = draft.config
    for block in blocks:
        holder = holder.setdefault(block, {})
    return holder, name


def key(path: str, value: object) -> Change:
    def change(draft: Draft) -> None:
        holder, name = _holder(draft, path)
        holder[name] = value

    return change


def no_key(path: str) -> Change:
    def change(draft: Draft) -> None:
        holder, name = _holder(draft, path)
        del holder[name]

    return change


def tensor(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def change(draft: Draft) -> None:
        draft.tensors[name] = make(draft.tensors[name].clone()).contiguous()

    return change


def more(name: str, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Change:
    return lambda draft: draft.tensors.update({name: torch.ones(shape, dtype=dtype)})


def no_tensor(name: str) -> Change:
    return lambda draft: draft.tensors.pop(name)


def entry(name: str, index: int, value: float) -> Change:
    def put(found: torch.Tensor) -> torch.Tensor:
        found[index] = value
        return found

    return tensor(name, put)


def twice(name: str, dim: int = 0) -> Change:
    return tensor(name, lambda found: torch.cat([found, found], dim))


def reads_a_wider_target(draft: Draft) -> None:
    draft.config["target_hidden_size"] = 2 * HIDDEN
    twice("fc.weight", 1)(draft)


def as_speculators(draft: Draft) -> None:
    """A published DFlash draft in the speculators format."""
    dflash = draft.config.pop("dflash_config")
    root = {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "aux_hidden_state_layer_ids": [i + 1 for i in dflash["target_layer_ids"]],
        "mask_token_id": dflash["mask_token_id"],
        "block_size": draft.config.pop("block_size"),
    }
    draft.config = root | {LAYER: draft.config}


def as_qwen3(draft: Draft) -> None:
    draft.config |= {"architectures": ["Eagle3Qwen3ForCausalLM"], "model_type": "qwen3"}
    for name in "qk":
        more(f"{ATTENTION}.{name}_norm.weight", 32)(draft)


def plain(name: str) -> Change:
    """A quantised weight as it was before."""

    def change(draft: Draft) -> None:
        scale = draft.tensors.pop(f"{name}_scale")
        draft.tensors[name] = (draft.tensors[name] * scale).bfloat16()

    return change


def quantised_fc(draft: Draft) -> None:
    draft.config["quantization_config"]["ignore"] = ["lm_head"]
    draft.tensors["fc.weight"] = (100 * draft.tensors["fc.weight"]).to(torch.int8)
    draft.tensors["fc.weight_scale"] = torch.full((HIDDEN, 1), 0.01)


@dataclass(frozen=True)
class Broken:
    rule: str
    family: str
    changes: tuple[Change, ...]
    words: tuple[str, ...]  # of the finding
    others: frozenset[str] = frozenset()  # errors that cannot be avoided
    setting: dict[str, Any] = field(default_factory=dict)
    target: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def case(
    rule: str,
    what: str,
    family: str,
    *changes: Change,
    words: tuple[str, ...],
    others: tuple[str, ...] = (),
    **rest: Any,
) -> Any:
    broken = Broken(rule, family, changes, words, frozenset(others), **rest)
    return pytest.param(broken, id=f"{rule}-{what}")


# fmt: off
CASES = [
    # What the draft claims to be.
    case(
        "architecture_is_named", "missing", "native", no_key("architectures"),
        words=("architectures", "None", "LlamaForCausalLMEagle3"),
    ),
    case(
        "architecture_is_named", "empty", "dflash", key("architectures", []),
        words=("architectures", "[]"),
    ),
    case(
        "architecture_is_named", "text", "mla", key("architectures", "LlamaForCausalLMEagle3"),
        words=("architectures of", "a list with one name"),
    ),
    case(
        "speculators_type_is_named", "missing", "native", key("speculators_config", {}),
        words=("speculators_model_type", "None", "eagle3, peagle or dflash"),
    ),
    case(
        "architecture_is_served", "gated_by_depth", "native",
        key("architectures", ["LlamaForCausalLMEagle3Gated"]),
        words=("'LlamaForCausalLMEagle3Gated'", "Eagle3DeepseekV2ForCausalLM", "gates its MLP"),
    ),
    case(
        "architecture_is_served", "unknown", "qwen3", key("architectures", ["Eagle3NewForCausalLM"]),
        words=("'Eagle3NewForCausalLM'", "DFlashDraftModel", "no drafter of that name"),
    ),
    case(
        "architecture_is_served", "p_eagle_by_name", "native",
        key("architectures", ["PEagleLlamaForCausalLM"]),
        words=("'PEagleLlamaForCausalLM'", "no drafter of that name"),
    ),
    case(
        "architecture_is_served", "speculators_on_gemma", "speculators",
        key(f"{LAYER}.model_type", "gemma"),
        words=("speculators_model_type", "('eagle3', 'gemma')", "eagle3 on llama"),
    ),
    case(
        "architecture_is_served", "speculators_of_a_new_kind", "speculators",
        key("speculators_model_type", "medusa"), words=("('medusa', 'llama')", "dflash on qwen3"),
    ),
    case(
        "model_type_is_readable", "missing", "native", no_key("model_type"),
        words=("model_type", "None", '"model_type": "llama"'),
    ),
    case(
        "model_type_is_readable", "taken_for_mtp", "mla", key("model_type", "deepseek_v3"),
        words=("model_type", "'deepseek_v3'", "multi-token-prediction", '"kimi_k2"'),
    ),
    case(
        "model_type_is_readable", "unknown_to_this_vllm", "qwen3",
        setting={"model_types": frozenset({"llama"})},
        words=("model_type", "'qwen3'", "this vLLM"),
    ),
    case(
        "model_type_is_usual", "where_vllm_cannot_be_asked", "native", key("model_type", "olmo2"),
        words=("model_type", "'olmo2'", "such as dflash, glm4_moe"),
    ),
    case(
        "method_fits_the_architecture", "eagle", "native", setting={"method": "eagle"},
        words=("method", "'eagle'", "'eagle3'", "'LlamaForCausalLMEagle3'"),
    ),
    case(
        "method_fits_the_architecture", "eagle3_for_dflash", "dflash", setting={"method": "eagle3"},
        words=("'eagle3'", "'dflash'", "'DFlashDraftModel'"),
    ),
    case(
        "method_fits_the_architecture", "dflash_for_a_plain_llama", "native",
        key("architectures", ["LlamaForCausalLM"]), setting={"method": "dflash"},
        words=("'dflash'", "'eagle3'", "'LlamaForCausalLM'"),
    ),
    case(
        "method_fits_the_architecture", "speculators", "speculators", setting={"method": "draft_model"},
        words=("'draft_model'", "'eagle3'"),
    ),

    # config.json
    *(
        case("config_is_well_formed", what, "native", change, words=words)
        for what, change, words in [
            ("no_hidden_size", no_key("hidden_size"), ("hidden_size", "None", "not stated")),
            ("no_eps", no_key("rms_norm_eps"), ("rms_norm_eps", "None", "up to 0.001")),
            ("large_eps", key("rms_norm_eps", 0.5), ("rms_norm_eps", "0.5", "up to 0.001")),
            ("activation", key("hidden_act", "gelu"), ("hidden_act", "'gelu'", '"silu"')),
            ("no_heads", key("num_attention_heads", 0), ("num_attention_heads", "0", "greater than 0")),
            ("text_for_a_size", key("head_dim", "32"), ("head_dim", "'32'", "integer")),
            ("true_for_a_size", key("draft_vocab_size", True), ("draft_vocab_size", "True", "integer")),
            ("text_for_a_flag", key("fc_norm", "yes"), ("fc_norm", "'yes'", "boolean")),
            ("nested", key("eagle_config.norm_output", 1), ("eagle_config.norm_output", "1", "boolean")),
            ("block", key("eagle_config", [1]), ("eagle_config", "[1]")),
            ("layer_type", key("layer_types", ["linear"]), ("layer_types.0", "'linear'")),
            ("logit_scale", key("logit_scale", -1.0), ("logit_scale", "-1.0", "greater than 0")),
            ("theta", key("rope_theta", 0), ("rope_theta", "0", "a positive number")),
            ("rope_block", key("rope_scaling", "yarn"), ("rope_scaling", "'yarn'", "an object")),
            ("factor", key("rope_scaling", {"factor": "8"}), ("rope_scaling.factor", "'8'", "positive")),
            (
                "two_thetas",
                key("rope_parameters", {"rope_theta": 5.0}),
                ("rope_theta", "[5.0, 10000.0]", "one value"),
            ),
        ]
    ),
    case(
        "config_is_well_formed", "speculators_layer", "speculators",
        key(f"{LAYER}.intermediate_size", None),
        words=("intermediate_size", "None"),
    ),
    case(
        "config_is_well_formed", "speculators_k", "speculators",
        key("speculators_config.proposal_methods", [{"speculative_tokens": 0}]),
        words=("speculators_config.proposal_methods.0.speculative_tokens", "greater than 0"),
    ),
    case(
        "aux_ids_are_boundaries", "beyond_n", "native", key(IDS, [1, 3, 9]),
        words=("[2, 4, 10]", "0 to N=8", "boundary = id + 1", "aux_layers"),
    ),
    case(
        "aux_ids_are_boundaries", "contradiction", "native", key(TOP_IDS, [1, 3, 5]),
        words=(TOP_IDS, IDS, "([1, 3, 5], [1, 2, 3])", "the same layers"),
    ),
    case(
        "aux_ids_are_boundaries", "dflash_without_ids", "dflash",
        no_key("dflash_config.target_layer_ids"),
        words=("dflash_config.target_layer_ids", "None", "a list of integers"),
    ),
    case(
        "aux_ids_are_boundaries", "option_repeats", "native", options={"aux_layers": [2, 2, 5]},
        words=("[2, 2, 5]", "each boundary once", "option aux_layers"),
    ),

    # Tensors
    case(
        "tensors_are_complete", "norm", "native", no_tensor("norm.weight"),
        words=("without norm.weight", "download"),
    ),
    case(
        "tensors_are_complete", "several", "p-eagle",
        no_tensor("mask_hidden"), no_tensor("layers.1.mlp.up_proj.weight"),
        words=("mask_hidden", "layers.1.mlp.up_proj.weight"),
    ),
    case(
        "tensors_are_complete", "biases_that_the_config_promises", "native", key("attention_bias", True),
        words=("layers.0.self_attn.q_proj.bias", "layers.0.self_attn.o_proj.bias"),
    ),
    case(
        "tensors_are_complete", "sinks_that_the_config_promises", "dflash",
        key("dflash_config.attention_sink_bias", True),
        words=("layers.0.self_attn.attention_sink_bias", "layers.1.self_attn.attention_sink_bias"),
    ),
    case(
        "tensors_are_complete", "scales_without_weights", "quantised",
        no_tensor(f"{ATTENTION}.k_proj.weight"),
        words=("without layers.0.self_attn.k_proj.weight",),
    ),
    case(
        "tensors_are_expected", "bias", "native", more(f"{ATTENTION}.q_proj.bias", HIDDEN),
        words=("midlayer.self_attn.q_proj.bias", "trained with more than config.json says"),
    ),
    case(
        "tensors_are_expected", "bias_of_fc", "post-norm", more("fc.bias", HIDDEN), words=("fc.bias",),
    ),
    case(
        "tensors_are_expected", "head_norms_of_another_backbone", "native",
        more(f"{ATTENTION}.q_norm.weight", 32), words=("midlayer.self_attn.q_norm.weight",),
    ),
    case(
        "tensors_are_expected", "further_layer", "dflash",
        more("layers.2.mlp.up_proj.weight", 96, HIDDEN),
        words=("layers.2.mlp.up_proj.weight",),
    ),
    case(
        "tensors_are_expected", "scales_without_quantisation", "mla",
        more("midlayer.mlp.up_proj.weight_scale", 1), words=("midlayer.mlp.up_proj.weight_scale",),
    ),
    case(
        "tensors_are_expected", "mask_hidden_of_dflash", "dflash", more("mask_hidden", 1, HIDDEN),
        words=("mask_hidden",),
    ),
    case(
        "tensor_shapes_fit", "o_proj", "native", tensor(f"{ATTENTION}.o_proj.weight", lambda t: t[:32]),
        words=("midlayer.self_attn.o_proj.weight", "(32, 64)", "(64, 64)"),
    ),
    case(
        "tensor_shapes_fit", "fc_norm", "post-norm", twice("fc_norm.3.weight"),
        words=("fc_norm.3.weight", "(128,)", "(64,)"),
    ),
    case(
        "tensor_shapes_fit", "q_norm", "qwen3", twice(f"{ATTENTION}.q_norm.weight"),
        words=("midlayer.self_attn.q_norm.weight", "(64,)", "(32,)"),
    ),
    case(
        "tensor_shapes_fit", "kv_b_proj", "mla", twice(f"{ATTENTION}.kv_b_proj.weight"),
        words=("midlayer.self_attn.kv_b_proj.weight", f"(160, {LATENT})", f"(80, {LATENT})"),
    ),
    case(
        "tensor_shapes_fit", "mask_hidden", "p-eagle", tensor("mask_hidden", lambda t: t[:, :HIDDEN]),
        words=("mask_hidden", "(1, 64)", "(1, 192)"),
    ),
    case(
        "tensor_shapes_fit", "later_layer_as_the_first", "p-eagle",
        twice("layers.1.self_attn.k_proj.weight", 1),
        words=("layers.1.self_attn.k_proj.weight", "(32, 128)", "(32, 64)"),
    ),
    case(
        "tensor_shapes_fit", "input_norm", "norm_before_fc", twice("input_norm.weight"),
        words=("input_norm.weight", "(384,)", "(192,)"),
    ),
    case(
        "tensor_shapes_fit", "head", "native", tensor("lm_head.weight", lambda t: t[:-1]),
        words=("lm_head.weight", "(95, 64)", "(96, 64)"),
    ),
    case(
        "attention_is_not_narrowed", "tall_k", "native", twice(f"{ATTENTION}.k_proj.weight"),
        words=("midlayer.self_attn.k_proj.weight", "64", "32, from the heads"),
    ),
    case(
        "attention_is_not_narrowed", "tall_q", "native",
        tensor(f"{ATTENTION}.q_proj.weight", lambda t: torch.cat([t] * 3)),
        words=("midlayer.self_attn.q_proj.weight", "192", "64, from the heads", "with a gate 128", "66"),
    ),
    case(
        "attention_is_not_narrowed", "beside_a_gate_of_its_own", "gated",
        more(f"{ATTENTION}.g_proj.weight", HEADS * HEAD_DIM, 2 * HIDDEN),
        words=("midlayer.self_attn.q_proj.weight", "128", "64, from the heads"),
    ),
    case(
        "attention_is_not_narrowed", "second_layer", "dflash", twice("layers.1.self_attn.v_proj.weight"),
        words=("layers.1.self_attn.v_proj.weight", "64", "32"),
    ),
    case(
        "gate_matches_its_flag", "without_its_rows", "native", key("attn_output_gate", True),
        words=("attn_output_gate", "True", "no gate in q_proj"),
    ),
    case(
        "gate_matches_its_flag", "denied", "gated", key("attn_output_gate", False),
        words=("attn_output_gate", "False", "elementwise gate in q_proj"),
    ),
    case(
        "gate_layout_is_stated", "missing", "gated", no_key("gate_layout"),
        words=("gate_layout", "interleaved is assumed", "verify --gate-layouts"),
    ),
    case(
        "gate_has_the_heads_rows", "odd", "native", more(f"{ATTENTION}.g_proj.weight", 7, 2 * HIDDEN),
        words=("midlayer.self_attn.g_proj.weight", "(7, 128)", "64 rows", "2 (one per head)"),
        others=("tensors_are_expected",),
    ),
    case(
        "gate_layouts_agree", "nested", "gated", key("eagle_config.gate_layout", "concat"),
        words=("gate_layout", "'interleaved', 'concat'"),
    ),
    case(
        "tensor_dtypes_fit", "norm", "native", tensor("norm.weight", lambda t: t.to(torch.int32)),
        words=("norm.weight", "'I32'", "BF16"),
    ),
    case(
        "tensor_dtypes_fit", "fp8_without_quantisation", "mla",
        tensor("midlayer.mlp.up_proj.weight", lambda t: t.to(torch.float8_e4m3fn)),
        words=("midlayer.mlp.up_proj.weight", "'F8_E4M3'", "quantization_config"),
        others=("quantised_weights_have_scales",),
    ),
    case(
        "tensor_dtypes_fit", "d2t", "native", tensor("d2t", lambda t: t.float()),
        words=("d2t", "'F32'", "I64"), others=("d2t_is_a_map",),
    ),
    case(
        "small_tensors_are_finite", "nan", "native", entry("norm.weight", 3, float("nan")),
        words=("values of norm.weight", "1 infinite or not a number"),
    ),
    case(
        "small_tensors_are_finite", "infinite", "post-norm", entry("fc_norm.1.weight", 0, float("-inf")),
        words=("values of fc_norm.1.weight", "finite numbers"),
    ),
    case(
        "fc_reads_every_aux_layer", "narrow", "native",
        tensor("fc.weight", lambda t: t[:, : 2 * HIDDEN]),
        words=("shape of fc.weight", "(64, 128)", "(64, 192): 3 aux layers", "aux_layers"),
    ),
    case(
        "fc_reads_every_aux_layer", "ids_beyond_fc", "dflash",
        key("dflash_config.target_layer_ids", [1, 2, 3, 4]),
        words=("shape of fc.weight", "(64, 192)", "(64, 256): 4 aux layers"),
    ),
    case(
        "fc_reads_every_aux_layer", "fc_without_aux_states", "native",
        key("eagle_config.use_aux_hidden_state", False),
        words=("use_aux_hidden_state", "False", "fc.weight"),
    ),
    case(
        "bias_is_called_attention_bias", "older_key", "native", key("bias", True),
        words=("bias of", "True", '"attention_bias": true'),
    ),
    case(
        "mla_sizes_are_stated", "v_head_dim", "mla", no_key("v_head_dim"),
        words=("v_head_dim", "None"), others=("tensor_shapes_fit",),
    ),
    case(
        "weights_can_be_checked", "bin", "native", lambda draft: draft.tensors.clear(),
        words=("'.bin'", "safetensors"),
    ),

    # Norms and layers
    case(
        "flags_agree", "fc_norm", "post-norm", key("eagle_config.fc_norm", False),
        words=("fc_norm at fc_norm and eagle_config.fc_norm", "(True, False)"),
    ),
    case(
        "flags_agree", "speculators", "speculators", key(f"{LAYER}.norm_before_residual", True),
        words=("norm_before_residual", f"{LAYER}.norm_before_residual", "(False, True)"),
    ),
    case(
        "one_kind_of_input_norm", "both", "post-norm",
        key("norm_before_fc", True), more("input_norm.weight", 5 * HIDDEN),
        words=("fc_norm and norm_before_fc", "(True, True)"),
    ),
    case(
        "mla_has_no_norm_before_fc", "set", "mla",
        key("norm_before_fc", True), more("input_norm.weight", 3 * HIDDEN),
        words=("norm_before_fc", "True", "MLA"),
    ),
    case(
        "norms_need_aux_states", "fc_norm", "no_aux", key("fc_norm", True),
        words=("fc_norm", "use_aux_hidden_state is false"),
    ),
    case(
        "fc_norms_match_their_flag", "one_missing", "post-norm", no_tensor("fc_norm.4.weight"),
        words=("fc_norm.3.weight", "fc_norm.0 to fc_norm.4"),
    ),
    case(
        "fc_norms_match_their_flag", "one_more", "post-norm", more("fc_norm.5.weight", HIDDEN),
        words=("fc_norm.5.weight", "fc_norm.0 to fc_norm.4"),
    ),
    case(
        "fc_norms_match_their_flag", "no_flag", "post-norm", key("fc_norm", False),
        words=("fc_norm.0.weight", "none, because"),
    ),
    case(
        "input_norm_matches_its_flag", "no_flag", "norm_before_fc", key("norm_before_fc", False),
        words=("norm_before_fc", "False", "an input_norm.weight"),
    ),
    case(
        "input_norm_matches_its_flag", "no_weight", "norm_before_fc", no_tensor("input_norm.weight"),
        words=("norm_before_fc", "True", "no input_norm.weight"),
    ),
    case(
        "norm_output_is_unambiguous", "alone", "native", key("norm_output", True),
        words=("norm_output", "True", "False, as fc_norm", '"norm_output": false'),
    ),
    case(
        "norm_output_is_unambiguous", "missing", "post-norm", no_key("norm_output"),
        words=("norm_output", "True, as fc_norm", '"norm_output": true'),
    ),
    case(
        "norm_before_residual_is_stated", "missing", "speculators", no_key("norm_before_residual"),
        words=("norm_before_residual", "None", "false is taken"),
    ),
    case(
        "aux_layers_are_stated", "none", "native", no_key(IDS), words=(TOP_IDS, "[2, 4, 5] is taken"),
    ),
    case(
        "aux_ids_may_be_boundaries", "the_default", "native", key(IDS, [2, 4, 5]),
        words=("[2, 4, 5]", "boundaries [3, 5, 6]", '"boundary"'),
    ),
    case(
        "aux_order_is_restored", "unsorted", "native", key(IDS, [3, 1, 2]),
        words=("[3, 1, 2]", "[2, 3, 4]", "permuted"),
    ),
    case(
        "aux_count_is_consistent", "num_aux_hidden_states", "native", key("num_aux_hidden_states", 5),
        words=("num_aux_hidden_states", "5", "3, the number of aux layers"),
    ),
    case(
        "aux_count_is_consistent", "num_aux_layers", "dflash", key("num_aux_layers", 2),
        words=("num_aux_layers", "2", "3, the number of aux layers"),
    ),

    # Vocabulary
    case(
        "draft_vocabulary_fits", "vocab_size", "native", key("vocab_size", 120),
        words=("vocab_size", "120", "128, the target's"),
    ),
    case(
        "draft_vocabulary_fits", "draft_vocab_size", "mla",
        key("draft_vocab_size", 160), no_tensor("lm_head.weight"),
        words=("draft_vocab_size", "160", "at most 128"),
    ),
    case(
        "d2t_present_iff_reduced", "missing", "native", no_tensor("d2t"),
        words=("d2t", "None", "96 of 128 is reduced"),
    ),
    case(
        "d2t_present_iff_reduced", "superfluous", "mla", more("d2t", VOCAB, dtype=torch.int64),
        words=("d2t", "'present'", "128 of 128 is not reduced"),
    ),
    case(
        "d2t_present_iff_reduced", "superfluous_t2d", "mla", more("t2d", VOCAB, dtype=torch.bool),
        words=("t2d", "'present'", "not reduced"),
    ),
    case(
        "d2t_is_a_map", "negative", "native", entry("d2t", 0, -1),
        words=("d2t", "-1 to ", "96 different target ids from 0 to 127"),
    ),
    case(
        "d2t_is_a_map", "beyond_the_vocabulary", "native", entry("d2t", -1, 200),
        words=("d2t", "to 295", "from 0 to 127"),
    ),
    case(
        "d2t_is_a_map", "all_the_same", "native",
        tensor("d2t", lambda t: -torch.arange(len(t))), words=("0 to 0, 1 of them distinct",),
    ),
    case(
        "d2t_is_a_map", "short", "native", tensor("d2t", lambda t: t[:-1]), no_tensor("t2d"),
        words=("I64 of shape (95,)", "96 integers, one per draft token"),
    ),
    case(
        "d2t_ascends", "two_swapped", "native",
        tensor("d2t", lambda t: torch.cat([t[1:2] + 1, t[:1] - 1, t[2:]])),
        words=("order of the target ids in d2t", "'not ascending'", "by frequency"),
    ),
    case(
        "d2t_ascends", "by_frequency", "native",
        tensor("d2t", lambda t: (t + torch.arange(len(t))).flip(0) - torch.arange(len(t))),
        words=("'not ascending'", "export d2t and lm_head again"),
    ),
    case(
        "d2t_is_converted", "absolute", "native", tensor("d2t", lambda t: t + torch.arange(len(t))),
        words=("d2t", "target ids", "converted while it is loaded"),
    ),
    case(
        "d2t_agrees_with_t2d", "one_unmarked", "native",
        tensor("t2d", lambda t: t.index_fill(0, t.nonzero()[0], False)),
        words=("t2d", "differs from d2t in 1 target ids", "128 target ids"),
    ),
    case(
        "d2t_agrees_with_t2d", "short", "native", tensor("t2d", lambda t: t[:-1]),
        words=("t2d", "BOOL of shape (127,)", "128"),
    ),
    case(
        "head_is_present", "reduced", "native", no_tensor("lm_head.weight"),
        words=("lm_head.weight", "None", "96 rows"),
    ),
    case(
        "head_is_present", "wider_target", "mla",
        reads_a_wider_target, no_tensor("lm_head.weight"), more("embed_tokens.weight", VOCAB, HIDDEN),
        target={"hidden_size": 2 * HIDDEN}, words=("lm_head.weight", "width 64", "width 128"),
    ),
    case(
        "embeddings_can_be_shared", "wider_target", "native", reads_a_wider_target,
        target={"hidden_size": 2 * HIDDEN},
        words=("embed_tokens.weight", "None", "width 64", "width 128"),
    ),
    case(
        "lent_parts_are_usual", "head_of_a_whole_vocabulary", "mla", no_tensor("lm_head.weight"),
        words=("lm_head.weight", "None", "the target's is used"),
    ),
    case(
        "lent_parts_are_usual", "embeddings", "speculators", no_tensor("embed_tokens.weight"),
        words=("embed_tokens.weight", "None", "the target's is used"),
    ),
    case(
        "tied_embeddings_are_ignored", "tied", "native", key("tie_word_embeddings", True),
        words=("tie_word_embeddings", "True", "lm_head"),
    ),
    case(
        "tokenizers_agree", "another_token", "native", words=("tokenizer.json", "1 tokens, such as 'b'"),
    ),

    # Draft and target
    case(
        "target_width_fits", "stated", "native", key("target_hidden_size", 32),
        words=("target_hidden_size", "32", "64, the target's hidden size"),
    ),
    case(
        "target_width_fits", "another_target", "native", target={"hidden_size": 2 * HIDDEN},
        words=("hidden_size", "64", "128, the target's"),
        others=("fc_reads_every_aux_layer", "embeddings_can_be_shared"),
    ),
    case(
        "rope_is_stated", "llama", "native", no_key("rope_theta"),
        words=("rope_theta", "None", "10000 is taken"),
    ),
    case(
        "rope_is_stated", "qwen3", "dflash", no_key("rope_theta"),
        words=("rope_theta", "None", "1000000 is taken"),
    ),
    case(
        "rope_matches_the_target", "theta", "native", key("rope_theta", 500_000),
        words=("theta 500000", "theta 10000"),
    ),
    case(
        "rope_matches_the_target", "stretched", "native",
        key("rope_scaling", {"rope_type": "yarn", "factor": 4.0}), words=("yarn x4", "theta 10000"),
    ),
    case(
        "target_depth_fits", "z_lab", "dflash", key("num_target_layers", 40),
        words=("num_target_layers", "40", "8, the target's number of layers"),
    ),
    case(
        "target_depth_fits", "torchspec", "dflash", key("target_num_hidden_layers", 36),
        words=("target_num_hidden_layers", "36", "8, the target's"),
    ),
    case(
        "eagle3_is_causal", "false", "native", key("is_causal", False),
        words=("is_causal", "False", "autoregressive"),
    ),
    case(
        "head_dim_is_stated", "missing", "native", no_key("head_dim"),
        words=("head_dim", "None", "32 is taken"),
    ),
    case(
        "heads_divide", "three_of_two", "native", key("num_key_value_heads", 3),
        *(tensor(f"{ATTENTION}.{n}_proj.weight", lambda t: torch.cat([t] * 3)) for n in "kv"),
        words=("num_key_value_heads", "3", "a divisor of num_attention_heads, 2"),
    ),
    case(
        "layer_types_are_complete", "short", "dflash", key("layer_types", ["full_attention"]),
        words=("layer_types", "'1 entries'", "2, one per layer"),
    ),
    case(
        "layer_types_are_complete", "no_window", "native", key("layer_types", ["sliding_attention"]),
        words=("sliding_window", "None", "a positive integer"),
    ),
    case(
        "layer_types_are_complete", "no_forced_window", "dflash", key("dflash_config.use_swa", True),
        words=("sliding_window", "None", "a positive integer"),
    ),
    case(
        "trained_length_covers_max_model_len", "short", "native", setting={"max_model_len": 1024},
        words=("512", "max_model_len, 1024"),
    ),
    case(
        "trained_length_covers_max_model_len", "stretched", "native",
        key("rope_scaling", {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 128}),
        words=("128", "max_model_len, 512"),
    ),
    case(
        "k_is_within_the_trained_unroll", "beyond", "speculators", setting={"k": 4},
        words=("num_speculative_tokens", "4", "up to 3"),
    ),
    case(
        "quantised_weights_are_there", "plain", "native", key("quantization_config.quant_method", "fp8"),
        words=("quantization_config", "'fp8'", "every weight of the files is plain"),
    ),
    case(
        "quantised_weights_have_scales", "one_missing", "quantised",
        no_tensor("midlayer.mlp.up_proj.weight_scale"),
        words=("without those of layers.0.mlp.up_proj", "a scale beside each"),
    ),
    case(
        "quantised_weights_have_scales", "the_scale_of_its_input_alone", "quantised",
        no_tensor(f"{ATTENTION}.q_proj.weight_scale"), more(f"{ATTENTION}.q_proj.input_scale", 1),
        words=("without those of layers.0.self_attn.q_proj",),
    ),
    case(
        "scales_are_numbers", "integers", "quantised",
        tensor(f"{ATTENTION}.o_proj.weight_scale", lambda t: t.to(torch.int32)),
        words=("midlayer.self_attn.o_proj.weight_scale", "'I32'", "BF16, F16, F32"),
    ),
    case(
        "scales_are_numbers", "eight_bits_beside_eight_bits", "quantised",
        tensor(f"{ATTENTION}.o_proj.weight_scale", lambda t: t.to(torch.float8_e4m3fn)),
        words=("midlayer.self_attn.o_proj.weight_scale", "'F8_E4M3'"),
    ),
    case(
        "scales_fit_their_weights", "half", "quantised",
        tensor("midlayer.mlp.down_proj.weight_scale", lambda t: t[::2]),
        words=("midlayer.mlp.down_proj.weight_scale", "(32, 1)", "64 rows as its weight has"),
    ),
    case(
        "scales_fit_their_weights", "of_another_weight", "quantised",
        twice("midlayer.mlp.down_proj.weight_scale"), words=("(128, 1)", "one per block of rows"),
    ),
    case(
        "quantisation_names_match", "local_name_of_fc", "quantised", key(IGNORE, ["lm_head", "fc"]),
        words=("without fc, whose weights are plain", "model.fc", "a pattern"),
    ),
    case(
        "quantisation_names_match", "local_number", "quantised",
        plain("midlayer.mlp.down_proj.weight"),
        key(IGNORE, ["lm_head", "model.fc", "model.layers.0.mlp.down_proj"]),
        words=("without layers.0.mlp.down_proj,", "model.layers.8.mlp.down_proj"),
    ),
    case(
        "quantisation_names_match", "qwen3", "quantised",
        as_qwen3, plain(f"{ATTENTION}.v_proj.weight"),
        key(IGNORE, ["lm_head", "model.fc", "model.layers.8.self_attn.v_proj"]),
        words=("without layers.0.self_attn.v_proj,", "model.layers.8.v_proj,"),
    ),
    case(
        "quantised_fc_is_in_order", "descending", "quantised", quantised_fc, key(IDS, [3, 2, 1]),
        words=("order of the draft's aux layers", "[3, 2, 1]", "ascending ids", "a plain fc"),
    ),
    case(
        "runner_serves_it", "no_aux_on_v2", "no_aux", setting={"runner": "v2"},
        words=("model runner", "'v2'", "v1 for this draft", "VLLM_USE_V2_MODEL_RUNNER=0"),
    ),
    case(
        "runner_serves_it", "parallel_on_v2", "p-eagle",
        setting={"runner": "v2", "parallel_drafting": True},
        words=("'v2'", "v1 for this draft", "parallel"),
    ),
    case(
        "runner_serves_it", "mixed_windows_on_v1", "dflash",
        key("layer_types", ["sliding_attention", "full_attention"]), key("sliding_window", 64),
        setting={"runner": "v1"}, words=("'v1'", "v2 for this draft", "VLLM_USE_V2_MODEL_RUNNER=1"),
    ),
    case(
        "runner_is_particular", "no_aux", "no_aux",
        words=("model runner", "v1 for this draft", "VLLM_USE_V2_MODEL_RUNNER=0"),
    ),
    case(
        "runner_is_particular", "parallel", "p-eagle", words=("v1 for this draft", "in parallel"),
    ),
    case(
        "runner_is_particular", "mixed_windows", "dflash",
        key("layer_types", ["sliding_attention", "full_attention"]), key("sliding_window", 64),
        words=("v2 for this draft", "VLLM_USE_V2_MODEL_RUNNER=1"),
    ),

    # Drafts that fill in a block
    case(
        "k_is_within_the_block", "k_is_the_block", "dflash", setting={"k": 8},
        words=("num_speculative_tokens", "8", "up to 7", "blocks of 8"),
    ),
    case(
        "block_size_is_stated", "missing", "dflash", no_key("block_size"), words=("block_size", "None"),
    ),
    case(
        "block_size_is_consistent", "two", "dflash", key("dflash_config.block_size", 16),
        words=("block_size", "(8, 16)"),
    ),
    case(
        "block_size_is_consistent", "one", "dflash", key("block_size", 1), setting={"k": None},
        words=("block_size", "1", "at least 2"),
    ),
    case(
        "mask_token_is_in_the_vocabulary", "beyond", "dflash", key("dflash_config.mask_token_id", VOCAB),
        words=("mask_token_id", "128", "0 to 127"),
    ),
    case(
        "mask_token_is_in_the_vocabulary", "negative", "p-eagle", key("mask_token_id", -1),
        words=("mask_token_id", "-1", "0 to 127"),
    ),
    case(
        "mask_token_is_in_the_vocabulary", "missing", "p-eagle", no_key("mask_token_id"),
        words=("mask_token_id", "None"),
    ),
    case(
        "mask_token_is_unambiguous", "two", "dflash", key("mask_token_id", 5),
        words=("mask_token_id", f"(5, {MASK_TOKEN})"),
    ),
    case(
        "causality_is_per_layer", "blanket", "dflash", as_speculators,
        key("sliding_window_non_causal", False), words=("sliding_window_non_causal", "False"),
    ),
    case(
        "anchor_is_not_sampled", "top_level", "dflash", key("sample_from_anchor", True),
        words=("sample_from_anchor", "True"),
    ),
    case(
        "anchor_is_not_sampled", "nested", "dflash", key("dflash_config.sample_from_anchor", True),
        words=("sample_from_anchor", "True"),
    ),
    case(
        "dflash_reads_aux_states", "top_level", "dflash", key("use_aux_hidden_state", False),
        words=("use_aux_hidden_state", "False"),
    ),
    case(
        "dflash_reads_aux_states", "nested", "dflash", key("dflash_config.use_aux_hidden_state", False),
        words=("use_aux_hidden_state", "False"),
    ),
    case(
        "final_state_is_not_normed", "reads_n", "dflash",
        key("dflash_config.target_layer_ids", [1, 3, 7]),
        words=("last aux layer", "8", "before the target's final norm"),
    ),
    case(
        "parallel_drafting_is_asked_for", "off", "p-eagle", setting={"parallel_drafting": False},
        words=("parallel_drafting", "true"),
    ),
]
# fmt: on


def inspect_broken(broken: Broken, folder, **options) -> Inspection:
    draft = valid_draft(broken.family)
    for change in broken.changes:
        change(draft)
    given = {"target": broken.target, "setting": broken.setting}
    if broken.rule == "tokenizers_agree":
        given["target_folder"] = write_tokenizers(folder, {"a": 0, "b": 1}, {"a": 0, "b": 2})
    return inspect(draft, folder, **given, **broken.options, **options)


def write_tokenizers(folder, draft: dict[str, int], target: dict[str, int]) -> Path:
    """One beside the draft, one in the target's folder, which is returned."""
    for place, tokens in ((folder, draft), (folder / "target", target)):
        place.mkdir(exist_ok=True)
        (place / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens}}))
    return folder / "target"


def names(findings) -> set[str]:
    return {finding.rule for finding in findings}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_valid_draft_has_no_finding(tmp_path, family, seed):
    assert inspect(valid_draft(family, seed), tmp_path, setting={"runner": "v1"}).findings == ()


@pytest.mark.parametrize("broken", CASES)
def test_rule_fires_alone_and_says_why(tmp_path, broken):
    inspection = inspect_broken(broken, tmp_path)
    found = [finding for finding in inspection.findings if finding.rule == broken.rule]
    assert found, names(inspection.findings)
    assert {(f.severity.value, f.can_run) for f in found} == {TABLE[broken.rule]}
    text = "\n".join(str(finding.problem) for finding in found)
    for word in broken.words:
        assert word in text
    own = {broken.rule} if TABLE[broken.rule][0] == "error" else set()
    assert names(inspection.errors) == own | broken.others


@pytest.mark.parametrize("broken", CASES)
def test_strict_false_makes_warnings_of_what_can_run(tmp_path, broken):
    strict = inspect_broken(broken, tmp_path)
    relaxed = inspect_broken(broken, tmp_path, strict=False)
    assert relaxed.case == strict.case
    for before, after in zip(strict.findings, relaxed.findings, strict=True):
        runs = before.severity == Severity.ERROR and TABLE[before.rule][1]
        assert after == (replace(before, severity=Severity.WARNING) if runs else before)


# Of formats that no small valid draft has: test_quantised_gate and test_awq_rows below.
WITH_TESTS_OF_THEIR_OWN = {"gated_rows_can_be_moved", "qweights_fit"}


def test_every_rule_has_a_case():
    assert {param.values[0].rule for param in CASES} == set(TABLE) - WITH_TESTS_OF_THEIR_OWN
    registered = [rule.name for rule in (*EARLY_RULES, *RULES)]
    assert len(registered) == len(set(registered))
    assert set(registered) | WITHOUT_A_FUNCTION == set(TABLE)


def test_severities_and_what_an_engine_would_start_with():
    registered = {rule.name: (rule.severity.value, rule.can_run) for rule in (*EARLY_RULES, *RULES)}
    assert registered == {name: row for name, row in TABLE.items() if name not in WITHOUT_A_FUNCTION}


# May be absent: lent by the target, or not read.
_OPTIONAL = {"embed_tokens.weight", "t2d"}


@pytest.mark.parametrize(
    ("family", "name"),
    [
        pytest.param(family, name, id=f"{family}-{name}")
        for family in FAMILIES
        for name in valid_draft(family).tensors
        if name not in _OPTIONAL and (family, name) != ("mla", "lm_head.weight")
    ],
)
def test_no_tensor_can_be_missing(tmp_path, family, name):
    draft = valid_draft(family)
    del draft.tensors[name]
    errors = inspect(draft, tmp_path).errors
    if (family, name) == ("gated", "midlayer.self_attn.q_proj.weight"):  # the gate goes with it
        errors = [error for error in errors if error.rule != "gate_matches_its_flag"]
    (error,) = errors
    module = re.sub(r"\.weight(_scale)?$", "", name).replace("midlayer.", "layers.0.")
    assert module.split(".")[-1 if "layers" in module else 0] in str(error.problem)


def test_t2d_may_be_missing(tmp_path):
    draft = valid_draft("native")
    del draft.tensors["t2d"]
    assert inspect(draft, tmp_path).findings == ()


@pytest.mark.parametrize("name", ["midlayer.self_attn.rotary_emb.inv_freq", "rotary_emb.cos_cached"])
def test_computed_constants_are_ignored(tmp_path, name):
    draft = valid_draft("native")
    draft.tensors[name] = torch.ones(16)
    assert inspect(draft, tmp_path).findings == ()


def test_other_spellings_of_tensor_names(tmp_path):
    draft = valid_draft("post-norm")
    spellings = {"fc_norm.0": "aux_norm_low", "fc_norm.1": "aux_norm_mid", "fc_norm.2": "aux_norm_high"}
    draft.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [1, 3, 5]
    draft.tensors["fc.weight"] = draft.tensors["fc.weight"][:, : 3 * HIDDEN].contiguous()
    for name in list(draft.tensors):
        module = name.removesuffix(".weight")
        found = draft.tensors.pop(name)
        if module in ("fc_norm.3", "fc_norm.4"):
            continue
        renamed = {"d2t": "draft_id_to_target_id"}.get(name, spellings.get(module, module))
        suffix = ".weight" if name.endswith(".weight") else ""
        draft.tensors[("" if renamed == "lm_head" else "model.") + renamed + suffix] = found
    assert inspect(draft, tmp_path).findings == ()


Headers = dict[str, tuple[str, tuple[int, ...]]]  # of what stands for one weight -> dtype and shape
WIDTH, INNER, KV = 320, 1040, 160  # rows that are no multiple of 128, columns that 16 divides
LINEAR = {
    "self_attn.q_proj": (WIDTH, 2 * WIDTH),
    "self_attn.k_proj": (KV, 2 * WIDTH),
    "self_attn.v_proj": (KV, 2 * WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (INNER, WIDTH),
    "mlp.up_proj": (INNER, WIDTH),
    "mlp.down_proj": (WIDTH, INNER),
}


def groups(size: int) -> int:
    return -(-size // 128)


def fp8(rows: int, columns: int) -> Headers:
    return {"weight": ("F8_E4M3", (rows, columns)), "weight_scale": ("F32", ())}


def fp8_blocks(rows: int, columns: int) -> Headers:
    scale = ("F32", (groups(rows), groups(columns)))
    return {"weight": ("F8_E4M3", (rows, columns)), "weight_scale_inv": scale}


def fp8_blocks_of_compressed_tensors(rows: int, columns: int) -> Headers:
    scale = ("BF16", (groups(rows), groups(columns)))
    return {"weight": ("F8_E4M3", (rows, columns)), "weight_scale": scale}


def mxfp8(rows: int, columns: int) -> Headers:
    return {"weight": ("F8_E4M3", (rows, columns)), "weight_scale": ("U8", (rows, columns // 32))}


def awq(rows: int, columns: int) -> Headers:
    return {
        "qweight": ("I32", (columns, rows // 8)),
        "qzeros": ("I32", (groups(columns), rows // 8)),
        "scales": ("F16", (groups(columns), rows)),
    }


def gptq(rows: int, columns: int) -> Headers:
    return awq(rows, columns) | {
        "qweight": ("I32", (columns // 8, rows)),
        "g_idx": ("I32", (columns,)),
    }


def int4(rows: int, columns: int) -> Headers:
    return {
        "weight_packed": ("I32", (rows, columns // 8)),
        "weight_scale": ("BF16", (rows, groups(columns))),
        "weight_shape": ("I64", (2,)),
    }


def nvfp4(rows: int, columns: int) -> Headers:
    return {
        "weight_packed": ("U8", (rows, columns // 2)),
        "weight_scale": ("F8_E4M3", (rows, columns // 16)),
        "weight_global_scale": ("F32", (1,)),
        "input_global_scale": ("F32", (1,)),
    }


def nvfp4_of_modelopt(rows: int, columns: int) -> Headers:
    return {
        "weight": ("U8", (rows, columns // 2)),
        "weight_scale": ("F8_E4M3", (rows, columns // 16)),
        "weight_scale_2": ("F32", ()),
        "input_scale": ("F32", ()),
    }


def inspect_headers(scheme: Callable[[int, int], Headers], quantisation: dict[str, Any]) -> Inspection:
    """A draft of which only the headers are there, quantised but for fc and head."""
    config = valid_draft("native").config | {
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_attention_heads": WIDTH // 32,
        "num_key_value_heads": KV // 32,
        "draft_vocab_size": VOCAB,
        "quantization_config": quantisation,
    }
    layer_norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    shapes = {
        "fc.weight": (WIDTH, 3 * WIDTH),
        "lm_head.weight": (VOCAB, WIDTH),
        "norm.weight": (WIDTH,),
        **{f"layers.0.{norm}.weight": (WIDTH,) for norm in layer_norms},
    }
    tensors = {name: TensorHeader(shape, "BF16", name) for name, shape in shapes.items()}
    for module, (rows, columns) in LINEAR.items():
        for suffix, (dtype, shape) in scheme(rows, columns).items():
            name = f"layers.0.{module}.{suffix}"
            tensors[name] = TensorHeader(shape, dtype, name)
    files = DraftFiles("draft", config, "safetensors", tensors)
    target = TargetFacts.from_config({**TARGET, "hidden_size": WIDTH})
    return inspect_draft(files, target, Setting(method="eagle3", k=3, max_model_len=512))


LEFT_OUT = ["lm_head", "model.fc"]  # by run-time names


@pytest.mark.parametrize(
    ("scheme", "quantisation"),
    [
        pytest.param(scheme, quantisation, id=f"{scheme.__name__}-{quantisation['quant_method']}")
        for scheme, quantisation in [
            (fp8, {"quant_method": "fp8", "ignored_layers": LEFT_OUT}),
            (fp8, {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": LEFT_OUT}),
            (fp8_blocks, {"quant_method": "fp8", "modules_to_not_convert": LEFT_OUT}),
            (
                fp8_blocks_of_compressed_tensors,
                {"quant_method": "compressed-tensors", "ignore": LEFT_OUT},
            ),
            (mxfp8, {"quant_method": "compressed-tensors", "ignore": LEFT_OUT}),
            (awq, {"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["fc"]}),
            (gptq, {"quant_method": "gptq", "bits": 4, "desc_act": True}),
            (int4, {"quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*fc$"]}),
            (nvfp4, {"quant_method": "compressed-tensors", "ignore": LEFT_OUT}),
            (nvfp4_of_modelopt, {"quant_method": "modelopt", "exclude_modules": ["lm_head", "*fc"]}),
        ]
    ],
)
def test_quantised_as_vllm_serves_it(scheme, quantisation):
    inspection = inspect_headers(scheme, quantisation)
    assert inspection.findings == ()
    assert inspection.case


@pytest.mark.parametrize(
    ("scheme", "quantisation"),
    [
        pytest.param(fp8, {"quant_method": "fp8"}, id="fp8"),
        pytest.param(fp8, {"quant_method": "fp8", "ignored_layers": ["fc"]}, id="fp8_part_of_a_name"),
        pytest.param(awq, {"quant_method": "awq", "modules_to_not_convert": ["lm_head"]}, id="awq"),
        pytest.param(
            awq, {"quant_method": "awq", "modules_to_not_convert": ["*fc"]}, id="awq_knows_no_patterns"
        ),
        pytest.param(nvfp4, {"quant_method": "compressed-tensors", "ignore": ["re:.*head"]}, id="nvfp4"),
        pytest.param(
            nvfp4_of_modelopt, {"quant_method": "modelopt", "exclude_modules": ["fc?"]}, id="modelopt"
        ),
    ],
)
def test_plain_fc_is_to_be_left_out(scheme, quantisation):
    inspection = inspect_headers(scheme, quantisation)
    assert names(inspection.findings) == {"quantisation_names_match"}


@pytest.mark.parametrize(
    ("changes", "ignored"),
    [
        pytest.param([plain("midlayer.mlp.up_proj.weight")], "model.layers.8.mlp.up_proj", id="layer"),
        pytest.param(
            [as_qwen3, plain(f"{ATTENTION}.k_proj.weight")], "model.layers.8.k_proj", id="qwen3"
        ),
        pytest.param([plain("midlayer.mlp.up_proj.weight")], r"re:.*\.up_proj$", id="pattern"),
        pytest.param([quantised_fc], "lm_head", id="fc_quantised_too"),
    ],
)
def test_left_out_by_run_time_names(tmp_path, changes, ignored):
    draft = valid_draft("quantised")
    key(IGNORE, ["lm_head", "model.fc", ignored])(draft)
    for change in changes:
        change(draft)
    assert inspect(draft, tmp_path).findings == ()


def test_only_what_the_groups_name_is_quantised(tmp_path):
    draft = valid_draft("quantised")
    draft.config["quantization_config"]["config_groups"]["group_0"]["targets"] = [r"re:.*layers\..*"]
    draft.config["quantization_config"]["ignore"] = []
    assert inspect(draft, tmp_path).findings == ()


def test_a_quantised_head_needs_more_than_its_scale(tmp_path):
    draft = valid_draft("quantised")
    draft.tensors["lm_head.weight_scale"] = torch.ones(1)
    del draft.tensors["lm_head.weight"]
    assert names(inspect(draft, tmp_path).errors) == {"head_is_present"}


@pytest.mark.parametrize("method", [[], {}, 7, None])
def test_a_malformed_quantisation_does_not_make_the_rules_raise(tmp_path, method):
    draft = valid_draft("quantised")
    draft.config["quantization_config"]["quant_method"] = method
    assert inspect(draft, tmp_path)


@pytest.mark.parametrize("draft", [{"a": 0}, {"a": 0, "b": 1, "mask": 2}])
def test_tokenizers_that_agree(tmp_path, draft):
    target = write_tokenizers(tmp_path, draft, {"a": 0, "b": 1})
    assert inspect(valid_draft("native"), tmp_path, target_folder=target).findings == ()


@pytest.mark.parametrize(
    ("family", "setting"),
    [
        pytest.param("no_aux", {"runner": "v1"}, id="no_aux_on_v1"),
        pytest.param("no_aux", {"runner": "v2", "v2_runner_needs_aux_states": False}, id="no_aux_on_v2"),
        pytest.param("p-eagle", {"runner": "v2"}, id="p_eagle_in_series_on_v2"),
        pytest.param("p-eagle", {"runner": "v1", "parallel_drafting": True}, id="p_eagle_on_v1"),
        pytest.param("dflash", {"runner": "v1"}, id="one_window_on_v1"),
        pytest.param("dflash", {"runner": "v2"}, id="one_window_on_v2"),
        pytest.param("native", {"model_types": frozenset({"llama"})}, id="type_of_this_vllm"),
        pytest.param("native", {"k": 50, "method": None, "max_model_len": None}, id="nothing_known"),
    ],
)
def test_settings_that_serve(tmp_path, family, setting):
    assert inspect(valid_draft(family), tmp_path, setting=setting).findings == ()


def test_an_unusual_type_that_this_vllm_reads(tmp_path):
    draft = valid_draft("native")
    draft.config["model_type"] = "olmo2"
    setting = {"model_types": frozenset({"olmo2"})}
    assert inspect(draft, tmp_path, setting=setting).findings == ()


@pytest.mark.parametrize("model", ["MiniMaxM2", "Qwen2_5vl", "Qwen3vl"])
def test_other_names_of_the_llama_drafter(tmp_path, model):
    draft = valid_draft("native")
    draft.config["architectures"] = [f"Eagle3{model}ForCausalLM"]
    inspection = inspect(draft, tmp_path)
    assert inspection.findings == ()
    assert inspection.spec.backbone == "llama"


_NEW = "Eagle3NewForCausalLM"


@pytest.mark.parametrize(
    ("architecture", "setting"),
    [
        pytest.param("K3DSparkModel", {}, id="known_to_us"),
        pytest.param(_NEW, {"registered": frozenset({_NEW})}, id="known_to_this_vllm"),
        pytest.param("NewForCausalLM", {"registered": frozenset({_NEW})}, id="renamed_by_vllm"),
    ],
)
def test_left_to_vllm(tmp_path, architecture, setting):
    draft = valid_draft("native")
    draft.config["architectures"] = [architecture]
    assert inspect(draft, tmp_path, setting=setting).is_left_to_vllm


@pytest.mark.parametrize(("model_type", "rules"), [("llama", set()), ("olmo2", {"model_type_is_usual"})])
def test_another_method_leaves_it_to_vllm(tmp_path, model_type, rules):
    """A plain model as a draft model; warnings may be said of it."""
    draft = valid_draft("native")
    draft.config |= {"architectures": ["LlamaForCausalLM"], "model_type": model_type}
    inspection = inspect(draft, tmp_path, setting={"method": "draft_model"})
    assert inspection.is_left_to_vllm
    assert names(inspection.findings) == rules


def test_a_refused_draft_is_not_left_to_vllm(tmp_path):
    inspection = inspect(valid_draft("native"), tmp_path, setting={"method": "eagle"})
    assert inspection.errors
    assert not inspection.is_left_to_vllm


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 1000) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def paths(config: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name, value in config.items():
        found.append(prefix + name)
        if isinstance(value, dict):
            found += paths(value, f"{prefix}{name}.")
    return found


@cache
def files_of(family: str, folder) -> Any:
    return read_draft_files(str(write(valid_draft(family), folder / family)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("drafts")


# Keys that the valid drafts lack.
_FURTHER = (
    "dflash_config", "eagle_config.norm_output", "is_causal", "layer_types", "num_aux_hidden_states",
    "quantization_config", "quantization_config.ignore", "quantization_config.quant_method",
    "rope_parameters", "rope_parameters.full_attention", "rope_parameters.full_attention.factor",
    "rope_parameters.full_attention.rope_theta", "rope_scaling", "rope_scaling.factor", "sliding_window",
    "speculators_config", "speculators_model_type", "tie_word_embeddings", "transformer_layer_config",
    "transformer_layer_config.model_type",
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_config_makes_the_rules_raise(folder, data):
    family = data.draw(st.sampled_from(FAMILIES))
    draft = valid_draft(family)
    path = data.draw(st.sampled_from([*paths(draft.config), *_FURTHER]))
    key(path, data.draw(json_values))(draft)
    files = replace(files_of(family, folder), config=draft.config)
    setting = Setting(method=draft.method, k=draft.k, max_model_len=512)
    inspection = inspect_draft(files, TargetFacts.from_config(TARGET), setting)
    assert all(str(finding.problem) for finding in inspection.findings)


@pytest.mark.parametrize(
    ("family", "change"),
    [
        pytest.param("native", key("quantization_config", {"ignore": 5}), id="ignore"),
        pytest.param("native", key("num_hidden_layers", 2**62), id="many_layers"),
        pytest.param("speculators", key("speculators_model_type", ["eagle3"]), id="speculators_type"),
        pytest.param("speculators", key(f"{LAYER}.model_type", ["llama"]), id="layer_type"),
    ],
)
def test_malformed_values_do_not_make_the_rules_raise(tmp_path, family, change):
    draft = valid_draft(family)
    change(draft)
    assert inspect(draft, tmp_path)


@pytest.mark.parametrize("family", ["native", "dflash"])
def test_a_claim_of_many_layers_does_not_fill_the_message(tmp_path, family):
    draft = valid_draft(family)
    draft.config |= {"num_hidden_layers": 1000, "layer_types": None}
    errors = inspect(draft, tmp_path).errors
    assert errors
    assert all(len(str(error.problem)) < 10_000 for error in errors)


def _gated_quantised(draft, suffix: str, *shape: int, dtype=torch.float32) -> None:
    """The quantised draft with a gate in q_proj, and one more tensor of that module."""
    name = f"{ATTENTION}.q_proj.weight"
    for key in (name, f"{name}_scale"):
        draft.tensors[key] = torch.cat([draft.tensors[key]] * 2)
    draft.config["gate_layout"] = "concat"
    if suffix:
        draft.tensors[f"{ATTENTION}.q_proj.{suffix}"] = torch.ones(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("suffix", "shape", "moves"),
    [
        pytest.param("", (), True, id="scale_per_row"),
        pytest.param("weight_shape", (2,), True, id="no_rows"),
        pytest.param("weight_g_idx", (2 * HIDDEN,), False, id="order_of_columns"),
        pytest.param("weight_zero_point", (2 * HIDDEN, 1), False, id="packed_zero_points"),
    ],
)
def test_quantised_gate(tmp_path, suffix, shape, moves):
    draft = valid_draft("quantised")
    _gated_quantised(draft, suffix, *shape)
    found = names(inspect(draft, tmp_path).errors)
    assert ("gated_rows_can_be_moved" in found) == (not moves)


@pytest.mark.parametrize(("rows", "fits"), [(HEADS * HEAD_DIM, True), (2 * HEADS * HEAD_DIM, False)])
def test_awq_rows_are_those_of_its_scales(tmp_path, rows, fits):
    """A gated q_proj in AWQ: its rows are columns, and vLLM would keep the first half of them."""
    draft = valid_draft("quantised")
    draft.config["quantization_config"] = {
        "quant_method": "awq", "bits": 4, "group_size": 32, "modules_to_not_convert": ["fc"],
    }  # fmt: skip
    for name in [n for n in draft.tensors if n.endswith("_proj.weight")]:
        module, weight = name.removesuffix(".weight"), draft.tensors.pop(name)
        out = rows if module.endswith("q_proj") else weight.shape[0]
        del draft.tensors[f"{name}_scale"]
        draft.tensors |= {
            f"{module}.qweight": torch.ones(weight.shape[1], out // 8, dtype=torch.int32),
            f"{module}.qzeros": torch.ones(weight.shape[1] // 32, out // 8, dtype=torch.int32),
            f"{module}.scales": torch.ones(weight.shape[1] // 32, out).half(),
        }
    assert names(inspect(draft, tmp_path).errors) == (set() if fits else {"qweights_fit"})
