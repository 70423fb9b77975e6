"""Quantised drafts of which a scale, a weight or a name is wrong."""

from __future__ import annotations

import torch

from tests.unit.draft.rules.broken import case
from tests.unit.draft.rules.changes import (
    ANGELSLIM,
    ATTENTION,
    as_qwen3,
    key,
    more,
    no_key,
    no_tensor,
    plain,
    quantised_fc,
    tensor,
    twice,
)

# fmt: off
CASES = [
    case(
        "quantisation_is_well_formed", "targets_of_numbers", "quantised",
        key("quantization_config.config_groups.group_0.targets", [5]),
        words=("config_groups.group_0.targets", "is [5]", "Allowed: a list of text"),
    ),
    case(
        "quantisation_is_well_formed", "slow_target", "quantised",
        key("quantization_config.config_groups.group_0.targets", [r"re:(.|\w|[a-z])*[#!]"]),
        words=("(.|", "takes too long to match"),
    ),
    case(
        "quantisation_is_well_formed", "transforms", "quantised",
        key("quantization_config.transform_config", {"config_groups": {"u": {"type": "hadamard"}}}),
        words=("transform_config", "none", "unbounded", "without transforms"),
    ),
    case(
        "quantised_weights_are_there", "plain", "native", key("quantization_config.quant_method", "fp8"),
        words=("quantization_config", "'fp8'", "every weight of the files is plain"),
    ),
    case(
        "quantised_weights_have_scales", "one_missing", "quantised",
        no_tensor("midlayer.mlp.up_proj.weight_scale"),
        words=("without those of layers.0.mlp.up_proj", "a scale with each"),
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
        "quantised_weights_fit_their_method", "integers", "quantised",
        key("quantization_config.quant_method", "fp8"),
        words=("midlayer", "'I8'", "F8 for the quant_method fp8"),
    ),
    case(
        "fused_parts_agree", "value", "quantised", plain(f"{ATTENTION}.v_proj.weight"),
        words=("quantised parts of qkv_proj", "without layers.0.self_attn.v_proj", "all of its parts"),
    ),
    case(
        "fused_parts_agree", "qwen3", "quantised",
        as_qwen3, plain(f"{ATTENTION}.q_proj.weight"), plain(f"{ATTENTION}.k_proj.weight"),
        words=("qkv_proj", "without layers.0.self_attn.q_proj, layers.0.self_attn.k_proj"),
    ),
    case(
        "fused_parts_agree", "gate", "quantised", plain("midlayer.mlp.gate_proj.weight"),
        words=("quantised parts of gate_up_proj", "without layers.0.mlp.gate_proj"),
    ),
    case(
        "quantised_fc_is_in_order", "descending", "quantised",
        quantised_fc, no_key("eagle_config"), key(ANGELSLIM, [3, 2, 1]),
        words=("order of the draft's aux layers", "[3, 2, 1]", "ascending ids", "a plain fc"),
    ),
]
# fmt: on
