# SPDX-License-Identifier: Apache-2.0
"""What the keys of a draft's config.json mean to a drafter: read, of no account, or not computed.

Whatever comes with weights of its own (experts, other norms, heads) is the tensors' to tell; here are
numbers and switches that leave no trace among them. Sources: the modelling code of SafeAILab/EAGLE,
SpecForge, TorchSpec, z-lab DFlash, AngelSlim and speculators, and the config classes of transformers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_eagle_ext.checkpoint.draft_config import DFlashConfig, DraftConfig, NestedConfig
from vllm_eagle_ext.checkpoint.layer_ids import ANGELSLIM_KEY, IDS_KEY, OUTPUT_IDS_KEY
from vllm_eagle_ext.checkpoint.registry import config_blocks, own_keys
from vllm_eagle_ext.checkpoint.rope_config import rope_kind
from vllm_eagle_ext.checkpoint.spec import KeyEffect

_UNSET = (None, False, 0)
# Not computed by any drafter of this package; what they do to a draft that was trained with them.
UNCOMPUTED: Mapping[str, KeyEffect] = {
    "residual_multiplier": KeyEffect("scales what each layer adds", (None, 1)),
    "scale_depth": KeyEffect("scales what each layer adds", (None,)),
    "embedding_multiplier": KeyEffect("scales the embeddings", (None, 1)),
    "scale_emb": KeyEffect("scales the embeddings", (None, 1)),
    "attention_multiplier": KeyEffect("takes the place of 1 / sqrt(head_dim)", (None,)),
    "query_pre_attn_scalar": KeyEffect("takes the place of head_dim in 1 / sqrt(head_dim)", (None,)),
    "attn_scale": KeyEffect("scales the queries by position", (None,)),
    "attn_temperature_tuning": KeyEffect("scales the queries by position", _UNSET),
    "attn_logit_softcapping": KeyEffect("caps the attention scores", _UNSET),
    "attention_logit_cap": KeyEffect("caps the attention scores", _UNSET),
    "clip_qkv": KeyEffect("clips queries, keys and values", _UNSET),
    "hidden_activation": KeyEffect("takes the place of silu", (None, "silu")),
    "no_rope_layers": KeyEffect("leaves rope out of layers", (None, 1), by_layer=True),  # 1: with it
    "mla_use_nope": KeyEffect("leaves rope out of layers", _UNSET),
    "attention_chunk_size": KeyEffect("cuts the attention in chunks", _UNSET),
    "use_bidirectional_attention": KeyEffect("lets tokens see later ones", _UNSET),
    "depth_gate": KeyEffect("gates the draft by its depth", _UNSET),
    "shift_label": KeyEffect("moves each position's prediction by one", _UNSET),
    "pure_draft_prefix_len": KeyEffect("mixes the logits of a second head", _UNSET),
    "projector_type": KeyEffect("corrects the logits by a second head", (None, "dflash")),
    "dspark_backbone_conv_enabled": KeyEffect("adds convolutions to the layers", _UNSET),
    "attention_mode": KeyEffect("is another kind of attention", (None, "gqa")),
}
# Monotone: the likeliest token stays the likeliest, and a greedy draft the same.
RESCALES_LOGITS: Mapping[str, tuple[Any, ...]] = {
    "output_multiplier": (None, 1),
    "logits_scaling": (None, 1),
    "final_logit_softcapping": _UNSET,
    "logit_softcap": _UNSET,
    "logit_softcapping": _UNSET,
}

_ROPE_NUMBERS = frozenset(
    {
        "rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings",
        "partial_rotary_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
        "attention_factor", "low_freq_factor", "high_freq_factor", "short_factor", "long_factor",
        "mrope_section", "mrope_interleaved", "finetuned", "full_attention", "sliding_attention",
        "rope_dim", "xdrope_section",
    }
)  # fmt: skip
# Those of one kind of rope, which vLLM reads with that one.
_OF_ONE_KIND = {
    "alpha": "dynamic", "fope_init_factor": "default", "fope_sep_head": "default",
    "is_deepseek_v4": "deepseek_yarn", "long_mscale": "longrope", "mixed_b": "ntk",
    "num_inv_freq": "default", "num_key_value_heads": "default", "short_mscale": "longrope",
    "use_fope": "default",
}  # fmt: skip
_READ = frozenset(
    {
        *DraftConfig.model_fields, *DFlashConfig.model_fields, *NestedConfig.model_fields, IDS_KEY,
        OUTPUT_IDS_KEY, f"dspark_{OUTPUT_IDS_KEY}", ANGELSLIM_KEY, "aux_hidden_state_layer_ids",
        "rope_theta", "rope_scaling",
        "rope_parameters", "partial_rotary_factor", "speculators_model_type", "transformer_layer_config",
    }
)  # fmt: skip
# Of training, generation, storage or the target's other parts, and what comes with weights of its own.
_OF_NO_ACCOUNT = frozenset(
    {
        # every config of transformers, old and new
        "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path",
        "add_cross_attention", "attn_implementation", "auto_map", "bad_words_ids",
        "begin_suppress_tokens", "bos_token_id", "chunk_size_feed_forward",
        "cross_attention_hidden_size", "custom_pipelines", "decoder_start_token_id",
        "diversity_penalty", "do_sample", "dtype", "early_stopping", "encoder_no_repeat_ngram_size",
        "eos_token_id", "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
        "forced_eos_token_id", "gradient_checkpointing", "id2label", "ignore_keys_at_rope_validation",
        "is_decoder", "is_encoder_decoder", "keys_to_ignore_at_inference", "label2id",
        "length_penalty", "max_length", "min_length", "name_or_path", "no_repeat_ngram_size",
        "num_beam_groups", "num_beams", "num_return_sequences", "output_attentions",
        "output_hidden_states", "output_scores", "pad_token_id", "prefix", "problem_type",
        "pruned_heads", "remove_invalid_values", "repetition_penalty", "return_dict",
        "return_dict_in_generate", "sep_token_id", "suppress_tokens", "task_specific_params",
        "temperature", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p",
        "torch_dtype", "torchscript", "transformers_version", "typical_p", "unk_token_id",
        "use_bfloat16", "use_cache", "use_return_dict",
        # training
        "attention_dropout", "dropout", "embed_requires_grad", "embd_pdrop", "hidden_dropout",
        "initializer_range", "max_anchors", "num_anchors", "pretraining_tp", "resid_pdrop",
        # of the target's layers, or with weights that tell
        "_sliding_window_pattern", "aux_loss_alpha", "confidence_head_alpha",
        "decoder_sparse_step",
        "emb_dim", "ep_size", "experts_per_token", "first_k_dense_replace",
        "full_attention_interval", "gru_hidden_dim", "initial_context_length",
        "linear_conv_kernel_dim", "linear_key_head_dim", "linear_num_key_heads",
        "linear_num_value_heads", "linear_value_head_dim", "mamba_ssm_dtype",
        "mlp_only_layers", "modal_type", "moe_intermediate_size", "moe_layer_freq",
        "moe_layers", "mtp_num_hidden_layers", "n_group", "n_routed_experts", "n_shared_experts",
        "norm_topk_prob", "num_experts", "num_experts_per_tok", "num_local_experts",
        "num_nextn_predict_layers", "output_router_logits", "qk_head_dim", "routed_scaling_factor",
        "router_aux_loss_coef", "scoring_func", "seq_aux",
        "shared_expert_intermediate_size", "swiglu_alpha", "swiglu_limit", "topk_group", "topk_method",
        "use_qk_norm",
        # vLLM's multi-head latent attention takes rotated channels in pairs, as those configs say
        "rope_interleave",
        # switches of ModelOpt's exporter, alike in all of its drafts
        "use_input_layernorm_in_first_layer", "use_last_layernorm", "use_mtp_layernorm",
        "next_layer_regular",
        # of other kinds of drafts, whose tensors tell
        "draft_num_hidden_layers", "fc_bias", "hydra_num_heads", "hydra_num_layers", "medusa_num_heads",
        "medusa_num_layers", "parallel_draft_heads_num_layers", "parallel_draft_step", "qkv_bias",
        "truncated_vocab_size", "use_confidence_head",
        # of training, by NeMo AutoModel, DeepSpec and AngelSlim
        "attention_backend", "down_sample_ratio", "down_sample_ratio_min", "embed_weight_key",
        "gamma_warmup", "gamma_warmup_step", "loss_decay_gamma", "num_depths", "parallel_drafting",
        "step_loss_decay", "trust_remote_code", "ttt_length",
        # of targets whose config a trainer copies
        "attention_k_eq_v", "compress_ratios", "enable_moe_block", "global_head_dim",
        "hidden_size_per_layer_input", "indexer_types", "linear_attn_config", "mla_use_output_gate",
        "mlp_layer_types", "num_global_key_value_heads", "num_hash_layers", "num_kv_shared_layers",
        "num_mtp_modules", "use_double_wide_mlp", "vocab_size_per_layer_input",
        # producers and what they were trained for
        "algorithm", "base_model", "has_own_embed_tokens", "has_own_lm_head", "license", "model_name",
        "quantization", "speculators_version", "target_model", "target_model_name_or_path",
        "target_model_type", "target_vocab_size", "tokenizer_name_or_path",
    }
)  # fmt: skip
_MATHEMATICAL = re.compile(
    "activation|alibi|bias|cap$|capping|causal|clip|gate|mult|norm|offset|position|residual|rope|rotary"
    "|scal|sink|softcap|temperature|window"
)


def stated_keys(flat: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """Return dotted place, key and value of what a config states, except the numbers in rope's blocks.

    Args:
        flat: the config, that of a speculators draft flattened.
    """
    stated = [(key, key, value) for key, value in flat.items()]
    for block in config_blocks():
        inner = flat.get(block)
        for key, value in inner.items() if isinstance(inner, Mapping) else ():
            stated.append((f"{block}.{key}", key, value))
    return stated


def unknown_keys(flat: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """Return those of `stated_keys` whose meaning is not known, to some drafter or to none."""
    known = {*_READ, *_OF_NO_ACCOUNT, *UNCOMPUTED, *RESCALES_LOGITS, *own_keys()}
    return [stated for stated in stated_keys(flat) if stated[1] not in known]


def rope_keys(flat: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys of rope that nobody knows, or that vLLM reads with another kind of rope."""
    for block in ("rope_scaling", "rope_parameters"):
        inner = flat.get(block)
        if not isinstance(inner, Mapping):
            continue
        kind = rope_kind(inner)
        for key, value in inner.items():
            if key not in _ROPE_NUMBERS and _OF_ONE_KIND.get(key) != kind:
                yield f"{block}.{key}", value


def looks_mathematical(key: str, value: Any) -> bool:
    """Tell by a key's name whether it changes what is computed.

    A key that is switched off, or a neutral factor, does not.
    """
    return bool(_MATHEMATICAL.search(key)) and value not in (None, False, 0, 1, "", [], {})
