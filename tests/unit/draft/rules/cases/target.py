"""A draft of another target, another length or another number of tokens."""

from __future__ import annotations

import torch

from tests.support.checkpoints import HIDDEN
from tests.support.drafts import LAYER
from tests.unit.draft.rules.broken import case
from tests.unit.draft.rules.changes import ATTENTION, key, no_key, tensor

LENGTH, ORIGINAL = "max_position_embeddings", "original_max_position_embeddings"
YARN = {"rope_type": "yarn", "factor": 2.0, ORIGINAL: 128, "rope_theta": 1e4}
_YARN = (key("rope_parameters", YARN), key(LENGTH, 256))

# fmt: off
CASES = [
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
        "embedding_scale_is_stated", "gemma", "dflash", target={"model_type": "gemma4_text"},
        words=("input_embedding_scale", "missing", "multiplies its embeddings by 8", "dflash_config"),
    ),
    case(
        "embedding_scale_is_stated", "granite", "dflash2", target={"embedding_multiplier": 12},
        words=("input_embedding_scale", "by 12", '"input_embedding_scale": 12 into dflash_config'),
    ),
    case(
        "embedding_scale_is_stated", "minicpm", "dspark", target={"scale_emb": 2.5},
        words=("input_embedding_scale", "by 2.5", "has no factor", "embeddings of its own"),
    ),
    case(
        "rope_is_stated", "llama", "native", no_key("rope_theta"),
        words=("rope_theta", "missing", "10000 is taken"),
    ),
    case(
        "rope_is_stated", "qwen3", "dflash", no_key("rope_theta"),
        words=("rope_theta", "missing", "1000000 is taken"),
    ),
    *(
        case("rope_table_is_bounded", what, family, change, words=(*words, "up to 4194304 positions"))
        for what, family, change, words in [
            ("most_of_32_bits", "native", key(LENGTH, 2**31 - 1), (LENGTH, "2147483647", "128 GiB")),
            ("gigabytes", "dflash", key(LENGTH, 2**24), (LENGTH, "16777216")),
            ("latent", "mla", key(LENGTH, 2**22 + 1), (LENGTH, "4194305")),
            (
                "stretched", "native",
                key("rope_scaling", {"rope_type": "yarn", "factor": 1e300, ORIGINAL: 4096}),
                (f"{ORIGINAL} times factor", "4.096e+303"),
            ),
            (
                "original", "native",
                key(
                    "rope_scaling",
                    {"rope_type": "longrope", ORIGINAL: 2**40, "short_factor": [1], "long_factor": [1]},
                ),
                (ORIGINAL, "1099511627776"),
            ),
            (
                "linear", "native", key("rope_scaling", {"rope_type": "linear", "factor": 1e5}),
                (f"{LENGTH} times factor", "51200000"),
            ),
        ]
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
        "trainer_rotates_the_same_part", "speculators", "speculators",
        key(f"{LAYER}.partial_rotary_factor", 0.25),
        words=("partial_rotary_factor", "0.25", "rotates all channels", "to 1.0 in config.json"),
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
        "heads_divide", "three_of_two", "native", key("num_key_value_heads", 3),
        *(tensor(f"{ATTENTION}.{n}_proj.weight", lambda t: torch.cat([t] * 3)) for n in "kv"),
        words=("num_key_value_heads", "3", "a divisor of num_attention_heads, 2"),
    ),
    case(
        "windows_are_stated", "no_window", "native", key("layer_types", ["sliding_attention"]),
        words=("sliding_window", "missing", "a positive integer"),
    ),
    case(
        "windows_are_stated", "no_forced_window", "dflash", key("dflash_config.use_swa", True),
        words=("sliding_window", "missing", "a positive integer"),
    ),
    case(
        "trained_length_covers_max_model_len", "short", "native", engine={"max_model_len": 1024},
        words=("512", "max_model_len, 1024"),
    ),
    case(
        "trained_length_covers_max_model_len", "stretched", "native",
        key("rope_scaling", {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 128}),
        words=("128", "max_model_len, 512"),
    ),
    case(
        "target_is_the_drafts_own", "width_and_vocabulary", "native",
        target={"hidden_size": 2 * HIDDEN, "vocab_size": 2560},
        words=("probably another one", "hidden size 64 (here 128)", "a vocabulary of 128 (here 2560)"),
        others=(
            "target_width_fits", "narrow_vocabulary_is_padded", "fc_reads_every_aux_layer",
            "embeddings_can_be_shared",
        ),
    ),
    case(
        "k_leaves_room_in_the_context", "none_for_a_prompt", "native",
        engine={"k": 9, "max_model_len": 10}, words=("num_speculative_tokens", "9", "less than 9"),
    ),
    case(
        "k_leaves_room_in_the_context", "of_the_target", "native",
        engine={"k": 40, "max_model_len": None}, target={"max_position_embeddings": 32},
        words=("40", "max_model_len is 32"),
    ),
    case(
        "k_can_pay", "400", "native", engine={"k": 400},
        words=("num_speculative_tokens", "400", "up to 64", "position 64 in 4 %"),
    ),
    case(
        "k_is_within_the_trained_unroll", "not_stated", "native", engine={"k": 11},
        words=("num_speculative_tokens", "11", "up to 10", "does not say"),
    ),
    case(
        "gate_layout_has_a_gate", "none", "native", options={"gate_layout": "concat"},
        words=("gate_layout", "'concat'", "has no gate"),
    ),
    case(
        "draft_window_is_computed", "latent_attention", "mla", options={"draft_window": 32},
        words=("draft_window", "32", "latent attention"),
    ),
    case(
        "draft_window_is_computed", "a_class_of_vllms", "dflash2", options={"draft_window": 32},
        words=("draft_window", "32", "vLLM's own classes"),
    ),
    case(
        "draft_window_is_computed", "another_window", "dflash", key("dflash_config.causal", False),
        key("layer_types", ["sliding_attention", "full_attention"]), key("sliding_window", 16),
        options={"draft_window": 32}, engine={"runner": "v2"},
        words=("draft_window", "32", "16, the window of"),
    ),
    case(
        "draft_window_is_computed", "causality", "dflash",
        key("layer_types", ["sliding_attention", "full_attention"]), key("sliding_window", 16),
        options={"draft_window": 32}, engine={"runner": "v2"},
        words=("draft_window", "causal and bidirectional"),
    ),
    case(
        "rope_table_holds_drafted_texts", "v2", "native", *_YARN, engine={"runner": "v2"},
        words=("max_model_len", "512", "up to 256", "yarn", "VLLM_USE_V2_MODEL_RUNNER=0"),
    ),
    case(
        "rope_table_holds_drafted_texts", "window", "native", *_YARN, options={"draft_window": 32},
        engine={"runner": "v1"}, words=("max_model_len", "512", "up to 256", "draft_window"),
    ),
    case(
        "rope_table_holds_drafted_texts", "v1", "native", _YARN[0], engine={"runner": "v1"},
        words=("max_model_len", "512", "up to 256", "lower --max-model-len to 256"),
    ),
    case(
        "rope_table_holds_drafted_texts", "dynamic", "native", key(LENGTH, 128),
        key("rope_parameters", {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
        engine={"before_033": False}, words=("max_model_len", "512", "up to 128", "dynamic"),
    ),
    case(
        "draft_window_holds_a_step", "narrow", "native", options={"draft_window": 4},
        words=("draft_window", "4", "at least 5"),
    ),
    case(
        "draft_window_is_used", "longer_than_texts", "native", options={"draft_window": "auto"},
        words=("draft_window", "auto", "512 positions, and no text"),
    ),
    case(
        "draft_window_is_used", "not_stated", "native", no_key("max_position_embeddings"),
        options={"draft_window": "auto"}, words=("draft_window", "no max_position_embeddings"),
    ),
    case(
        "draft_window_is_used", "published", "native", key("layer_types", ["sliding_attention"]),
        key("sliding_window", 16), options={"draft_window": 32},
        words=("draft_window", "32", "which stays"),
    ),
    case(
        "k_is_within_the_trained_unroll", "beyond", "speculators", engine={"k": 4},
        words=("num_speculative_tokens", "4", "up to 3"),
    ),
]
# fmt: on
