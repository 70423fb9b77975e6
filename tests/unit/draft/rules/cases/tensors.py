"""Tensors that are missing, superfluous, of another shape or of another type."""

from __future__ import annotations

import torch

from tests.support.checkpoints import HEAD_DIM, HEADS, HIDDEN, LAYERS
from tests.support.drafts import LATENT
from tests.unit.draft.rules.broken import case
from tests.unit.draft.rules.changes import ATTENTION, entry, key, more, no_key, no_tensor, tensor, twice

# fmt: off
CASES = [
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
        words=("midlayer.self_attn.q_proj.bias", "computes these biases", "use another draft"),
    ),
    case(
        "tensors_are_expected", "biases_of_q_k_and_v", "native",
        more(f"{ATTENTION}.q_proj.bias", HIDDEN), more(f"{ATTENTION}.k_proj.bias", HEAD_DIM),
        more(f"{ATTENTION}.v_proj.bias", HEAD_DIM), key("qkv_bias", True),
        words=("vLLM's EAGLE-3 layer reads attention_bias", "would drop", "o_proj.bias of zeros"),
    ),
    case(
        "tensors_are_expected", "biases_of_q_k_and_v_on_qwen3", "qwen3",
        more(f"{ATTENTION}.q_proj.bias", HIDDEN), more(f"{ATTENTION}.k_proj.bias", HEAD_DIM),
        more(f"{ATTENTION}.v_proj.bias", HEAD_DIM),
        words=('edit config.json: "attention_bias": true',),
    ),
    case(
        "tensors_are_expected", "biases_of_q_k_and_v_on_dflash", "dflash",
        *(more(f"layers.{layer}.self_attn.{name}_proj.bias", rows)
          for layer in (0, 1) for name, rows in (("q", HIDDEN), ("k", HEAD_DIM), ("v", HEAD_DIM))),
        words=("vLLM's DFlash layer reads attention_bias", "o_proj.bias of zeros"),
    ),
    case(
        "tensors_are_expected", "biases_of_the_attention", "native",
        *(more(f"{ATTENTION}.{name}_proj.bias", rows)
          for name, rows in (("q", HIDDEN), ("k", HEAD_DIM), ("v", HEAD_DIM), ("o", HIDDEN))),
        words=('edit config.json: "attention_bias": true',),
    ),
    case(
        "tensors_are_expected", "biases_of_the_mlp", "native",
        *(more(f"midlayer.mlp.{name}_proj.bias", rows)
          for name, rows in (("gate", 96), ("up", 96), ("down", HIDDEN))),
        words=('edit config.json: "mlp_bias": true',),
    ),
    *(
        case("tensors_are_expected", what, family, more(name, 4, 4), words=(name, *words))
        for what, family, name, words in [
            ("medusa", "native", "parallel_draft_heads.0.medusa_layers.0.linear.weight",
             ("no drafter of vLLM computes Medusa heads", "use another draft")),
            ("hydra", "native", "hydra_head.0.linear.weight", ("Hydra heads", "use another draft")),
            ("domino", "dflash", "prefix_gru.weight_ih_l0", ("a recurrent head", "use another draft")),
            ("dflare", "dflash", "layers.0.self_attn.k_proj_target.weight", ("DFlare",)),
            ("mtp", "native", "eh_proj.weight", ("a multi-token-prediction head",)),
            ("experts", "mla", "midlayer.mlp.experts.0.up_proj.weight", ("computes experts",)),
            ("four_norms", "native", "midlayer.pre_feedforward_layernorm.weight", ("after attention",)),
            ("images", "native", "img_fc.weight", ("parts that read images",)),
            ("adapter_of_the_target", "native",
             "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
             ("an adapter of the target", "out of the draft's folder")),
            ("adapter", "dflash", "layers.0.self_attn.q_proj.lora_A.weight",
             ("merge it into the draft's weights",)),
            ("second_head", "dflash", "markov_head.markov_w1.weight",
             ('"architectures": ["Qwen3DSparkModel"]',)),
            ("selector", "dflash", "candidate_selector.predecessor_codebook",
             ('"architectures": ["DFlash2DraftModel"]',)),
        ]
    ),
    case(
        "gate_has_the_heads_rows", "of_latent_attention", "mla",
        more("midlayer.self_attn.g_proj.weight", HIDDEN, 2 * HIDDEN),
        words=("midlayer.self_attn.g_proj.weight", "no gate", "use another draft"),
        others=("tensors_are_expected",),
    ),
    case(
        "tensors_are_complete", "all_but_the_first_layer", "p-eagle", key("num_hidden_layers", 3),
        words=("layers.2.mlp.up_proj.weight", 'with 2 layers, edit config.json: "num_hidden_layers": 2'),
    ),
    case(
        "tensors_are_complete", "bias_of_o_proj", "native", key("attention_bias", True),
        more(f"{ATTENTION}.q_proj.bias", HIDDEN), more(f"{ATTENTION}.k_proj.bias", HEAD_DIM),
        more(f"{ATTENTION}.v_proj.bias", HEAD_DIM),
        words=("without layers.0.self_attn.o_proj.bias", "o_proj.bias of zeros"),
    ),
    case(
        "tensors_are_complete", "layers_of_another_number_than_the_target_has", "native",
        key("num_hidden_layers", 5), words=('with 1 layer, edit config.json: "num_hidden_layers": 1',),
    ),
    case(
        "depth_is_the_drafts_own", "the_targets", "native", key("num_hidden_layers", LAYERS),
        words=("num_hidden_layers", "8", "the number is the target's", '"num_hidden_layers": 1'),
    ),
    case(
        "depth_is_the_drafts_own", "the_targets_layer_types", "native",
        key("num_hidden_layers", LAYERS),
        key("layer_types", ["sliding_attention", "full_attention"] * 4), key("sliding_window", 16),
        words=("attends to all tokens", '"layer_types": ["full_attention"]'),
    ),
    case(
        "tensors_are_expected", "bias_of_fc", "post-norm", more("fc.bias", HIDDEN), words=("fc.bias",),
    ),
    case(
        "tensors_are_expected", "head_norms_of_another_backbone", "native",
        more(f"{ATTENTION}.q_norm.weight", 32),
        words=("midlayer.self_attn.q_norm.weight", '["Eagle3Qwen3ForCausalLM"]'),
    ),
    case(
        "tensors_are_expected", "further_layer", "dflash",
        more("layers.2.mlp.up_proj.weight", 96, HIDDEN),
        words=("layers.2.mlp.up_proj.weight", 'with 3 layers, edit config.json: "num_hidden_layers": 3'),
    ),
    case(
        "tensors_are_expected", "scales_without_quantisation", "mla",
        more("midlayer.mlp.up_proj.weight_scale", 1),
        words=("midlayer.mlp.up_proj.weight_scale", "quantization_config in config.json"),
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
        "tensor_shapes_fit", "mask_hidden", "p-eagle", tensor("mask_hidden", lambda t: t[..., :HIDDEN]),
        words=("mask_hidden", "(1, 1, 64)", "(1, 1, 192) or (1, 192)"),
    ),
    case(
        "tensor_shapes_fit", "flat_mask_hidden", "p-eagle", tensor("mask_hidden", torch.flatten),
        words=("mask_hidden", "(192,)", "(1, 1, 192) or (1, 192)"),
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
        "weights_are_finite", "nan", "native", entry("norm.weight", 3, float("nan")),
        words=("values of norm.weight", "1 infinite or NaN"),
    ),
    case(
        "weights_are_finite", "infinite", "post-norm", entry("fc_norm.1.weight", 0, float("-inf")),
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
        words=("v_head_dim", "missing"), others=("tensor_shapes_fit",),
    ),
    case(
        "weights_can_be_checked", "bin", "native", lambda draft: draft.tensors.clear(),
        words=("'.bin'", "safetensors"),
    ),
]
# fmt: on
