# SPDX-License-Identifier: Apache-2.0
"""Rules about keys of config.json that no drafter computes with.

Whatever comes with weights of its own (experts, other norms, heads) is the tensors' to tell; here are
numbers and switches that leave no trace among them. Sources: the modelling code of SafeAILab/EAGLE,
SpecForge, TorchSpec, z-lab DFlash, AngelSlim and speculators, and the config classes of transformers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from vllm_eagle_ext.draft.draft_config import DFlashConfig, DraftConfig
from vllm_eagle_ext.draft.findings import AS_TRAINED, Problems, Severity, key_problem, rule
from vllm_eagle_ext.draft.layer_ids import ANGELSLIM_KEY, IDS_KEY, OUTPUT_IDS_KEY
from vllm_eagle_ext.draft.registry import config_blocks, own_keys
from vllm_eagle_ext.draft.rope_config import COMPUTED_KINDS, rope_block
from vllm_eagle_ext.draft.spec import Case, KeyEffect

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

_READ = frozenset(
    {
        *DraftConfig.model_fields, *DFlashConfig.model_fields, IDS_KEY, OUTPUT_IDS_KEY,
        f"dspark_{OUTPUT_IDS_KEY}", ANGELSLIM_KEY, "aux_hidden_state_layer_ids",
        "speculators_model_type", "transformer_layer_config",
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
        # monotone: the likeliest token stays the likeliest, and a greedy draft the same
        "logits_scaling", "logit_softcap", "logit_softcapping",
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
    entries = [(key, key, value) for key, value in flat.items()]
    for block in config_blocks():
        inner = flat.get(block)
        for key, value in inner.items() if isinstance(inner, Mapping) else ():
            entries.append((f"{block}.{key}", key, value))
    return entries


def unknown_keys(flat: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return place and value of keys that nobody knows and that by their names change what is computed.

    A key that is switched off, or a neutral factor, does not.
    """
    known = {*_READ, *_OF_NO_ACCOUNT, *UNCOMPUTED, *own_keys()}
    return [
        (place, value)
        for place, key, value in stated_keys(flat)
        if key not in known and _MATHEMATICAL.search(key) and value not in _SWITCHED_OFF
    ]


@rule(Severity.ERROR, can_run=True)
def keys_are_computed(case: Case) -> Problems:
    """A drafter computes every key. vLLM's ignore what they do not know."""
    own = case.spec.family.own_keys
    of_others = {key: effect for key, effect in own_keys().items() if key not in own}
    uncomputed = {**UNCOMPUTED, **of_others}
    drafter = "no drafter computes" if own else "no EAGLE-3 drafter computes"
    for place, key, value in stated_keys(case.flat):
        known = uncomputed.get(key)
        if value == case.spec.family.identity_keys.get(key, known):
            continue
        in_place = key == "query_pre_attn_scalar" and value == case.spec.heads.dim
        if known is None or known.is_neutral(value) or in_place:
            continue
        neutral = [json.dumps(each) for each in known.neutral if each is not None]
        yield key_problem(
            place,
            value,
            allowed=f"{' or '.join([*neutral, 'no such key'])}: it {known.effect}, which {drafter}",
            remedy="if the key came from the target's config and the trainer ignored it, remove it from "
            "config.json; otherwise use another draft",
        )


@rule(Severity.ERROR)
def rope_is_computed(case: Case) -> Problems:
    """vLLM computes the rope."""
    if case.spec.rope.kind not in COMPUTED_KINDS:
        yield key_problem(
            "rope_type",
            case.spec.rope.kind,
            allowed=", ".join(sorted(COMPUTED_KINDS)),
            remedy='edit config.json: "rope_type": "dynamic", which is the same for text'
            if case.spec.rope.kind == "xdrope"
            else "no drafter of vLLM computes this rope: use another draft",
        )
        return
    block = rope_block(case.flat)
    if nested := [key for key in ("full_attention", "sliding_attention") if key in block]:
        yield key_problem(
            f"rope_parameters.{nested[0]}",
            block[nested[0]],
            allowed="no such key: all layers of a draft have one rope",
            remedy='state the draft\'s own in its place, with "rope_type" and "rope_theta"',
        )
    yield from _rotated_in_parts(case, block)


def _rotated_in_parts(case: Case, block: Mapping[str, Any]) -> Problems:
    """Find lists of rope that have not a number for each rotated pair of channels, as vLLM's have."""
    width = case.config.qk_rope_head_dim or int(case.spec.heads.dim * case.spec.rope.partial)
    sections = block.get("mrope_section")
    factors = ("short_factor", "long_factor") if case.spec.rope.kind in ("longrope", "su") else ()
    # One number serves for all.
    counts = {key: len(block[key]) for key in factors if len(block.get(key, [1])) > 1}
    # A start drops the sections of drafts that make all tokens in one pass.
    at_once = case.spec.family.drafts_in_parallel or bool(case.request.parallel_drafting)
    if sections and case.spec.rope.kind in ("default", "mrope") and not at_once:
        counts["mrope_section"] = sum(sections)
    for key, pairs in counts.items():
        if pairs != width // 2:
            yield key_problem(
                f"{key} of the rope",
                block[key],
                allowed=f"{width // 2} {'in sum' if key == 'mrope_section' else 'numbers'}, one for "
                "each pair of channels that is rotated",
                remedy=AS_TRAINED,
            )


@rule(Severity.WARNING)
def mathematical_keys_are_known(case: Case) -> Problems:
    """No unknown key looks mathematical."""
    for place, value in unknown_keys(case.flat):
        yield key_problem(
            place,
            value,
            allowed="keys that a drafter reads; this one is not known, is not read, and by its name may "
            "change what the draft computes",
            remedy="if acceptance is low, ask the publisher what it means; otherwise nothing",
        )
