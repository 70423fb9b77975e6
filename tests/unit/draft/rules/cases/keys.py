"""Keys that no drafter computes with."""

from __future__ import annotations

from tests.unit.draft.rules.broken import case
from tests.unit.draft.rules.changes import key

# fmt: off
CASES = [
    case(
        "keys_are_computed", "residual", "native", key("residual_multiplier", 0.22),
        words=("residual_multiplier", "0.22", "scales what each layer adds", "remove it"),
    ),
    case(
        "keys_are_computed", "labels", "dflash", key("dflash_config.shift_label", True),
        words=("dflash_config.shift_label", "True", "moves each position's prediction"),
    ),
    case(
        "keys_are_computed", "speculators_layer", "speculators",
        key("transformer_layer_config.attn_logit_softcapping", 50.0),
        words=("attn_logit_softcapping", "50.0", "caps the attention scores"),
    ),
    case(
        "keys_are_computed", "dflash_alone", "native", key("input_embedding_scale", 8.0),
        words=("input_embedding_scale", "8.0", "scales the embeddings", "no EAGLE-3 drafter"),
    ),
    case(
        "keys_are_computed", "dflash_alone_values", "p-eagle", key("attention_value_scale", 0.5),
        words=("attention_value_scale", "0.5", "scales the values"),
    ),
    case(
        "keys_are_computed", "dflash_alone_windows", "native", key("eagle_config.use_swa", True),
        words=("eagle_config.use_swa", "True", "a window"),
    ),
    case(
        "keys_are_computed", "dflash_alone_rope", "native", key("eagle_config.is_neox_style", False),
        words=("eagle_config.is_neox_style", "False", "neighbouring channels"),
    ),
    case(
        "keys_are_computed", "a_layer_without_rope", "native", key("no_rope_layers", [1, 0]),
        words=("no_rope_layers", "[1, 0]", "leaves rope out"),
    ),
    case(
        "keys_are_computed", "latents_without_rope", "mla", key("mla_use_nope", True),
        words=("mla_use_nope", "True", "leaves rope out"),
    ),
    case(
        "rope_is_computed", "of_a_target_that_sees", "native",
        key("rope_scaling", {"type": "xdrope", "alpha": 1000.0, "xdrope_section": [4, 4, 4, 4]}),
        words=("rope_type", "'xdrope'", '"rope_type": "dynamic"'),
    ),
    case(
        "rope_is_computed", "of_each_type_of_layer", "native",
        key("rope_parameters", {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}),
        words=("rope_parameters.full_attention", "one rope", '"rope_theta"'),
    ),
    case(
        "rope_is_computed", "sections_of_other_heads", "native",
        key("rope_scaling", {"type": "mrope", "mrope_section": [11, 11, 10]}),
        words=("mrope_section", "[11, 11, 10]", "16 in sum"),
    ),
    case(
        "rope_is_computed", "factors_of_other_heads", "native",
        key("rope_scaling", {
            "rope_type": "longrope", "short_factor": [1.0] * 3, "long_factor": [1.0] * 16,
            "original_max_position_embeddings": 256,
        }),
        words=("short_factor", "16 numbers"),
    ),
    case(
        "rope_is_computed", "unknown", "native",
        key("rope_scaling", {"rope_type": "hope", "factor": 2.0}),
        words=("rope_type", "'hope'", "yarn"),
    ),
    case(
        "mathematical_keys_are_known", "scale", "native", key("eagle_config.feature_scale", 1.5),
        words=("eagle_config.feature_scale", "1.5", "not known"),
    ),
]
# fmt: on
