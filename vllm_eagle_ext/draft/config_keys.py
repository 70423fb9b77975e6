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

from vllm_eagle_ext.draft.draft_config import DFlashConfig, DraftConfig, NestedConfig
from vllm_eagle_ext.draft.layer_ids import ANGELSLIM_KEY, IDS_KEY, OUTPUT_IDS_KEY
from vllm_eagle_ext.draft.registry import config_blocks, own_keys
from vllm_eagle_ext.draft.rope_config import rope_kind
from vllm_eagle_ext.draft.spec import KeyEffect

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
# Names that look mathematical but are of no account.
_OF_NO_ACCOUNT = frozenset(
    {
        # transformers: loading and generation
        "ignore_keys_at_rope_validation", "temperature",
        # of the target's layers, or with weights that tell
        "_sliding_window_pattern", "mla_use_output_gate", "norm_topk_prob", "routed_scaling_factor",
        "use_qk_norm",
        # vLLM's multi-head latent attention takes rotated channels in pairs, as those configs say
        "rope_interleave",
        # switches of ModelOpt's exporter, alike in all of its drafts
        "use_input_layernorm_in_first_layer", "use_last_layernorm", "use_mtp_layernorm",
        # of other kinds of drafts, whose tensors tell
        "fc_bias", "qkv_bias",
    }
)  # fmt: skip
_MATHEMATICAL = re.compile(
    "activation|alibi|bias|cap$|capping|causal|clip|gate|mult|norm|offset|position|residual|rope|rotary"
    "|scal|sink|softcap|temperature|window"
)
_SWITCHED_OFF: tuple[Any, ...] = (None, False, 0, 1, "", [], {})


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


def unknown_keys(flat: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return place and value of keys that nobody knows and that by their names change what is computed.

    A key that is switched off, or a neutral factor, does not.
    """
    known = {*_READ, *_OF_NO_ACCOUNT, *UNCOMPUTED, *RESCALES_LOGITS, *own_keys()}
    return [
        (place, value)
        for place, key, value in stated_keys(flat)
        if key not in known and _MATHEMATICAL.search(key) and value not in _SWITCHED_OFF
    ]


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
