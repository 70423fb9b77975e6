"""A config.json that says too little, too much or something else."""

from __future__ import annotations

from tests.support.drafts import LAYER
from tests.unit.draft.rules.broken import case
from tests.unit.draft.rules.changes import IDS, TOP_IDS, key, no_key

# fmt: off
CASES = [
    *(
        case("config_is_well_formed", what, "native", change, words=words)
        for what, change, words in [
            ("no_hidden_size", no_key("hidden_size"), ("hidden_size", "missing", "not stated")),
            ("no_eps", no_key("rms_norm_eps"), ("rms_norm_eps", "missing", "up to 0.001")),
            ("large_eps", key("rms_norm_eps", 0.5), ("rms_norm_eps", "0.5", "up to 0.001")),
            ("activation", key("hidden_act", "gelu"), ("hidden_act", "'gelu'", '"silu"')),
            ("no_heads", key("num_attention_heads", 0), ("num_attention_heads", "0", "greater than 0")),
            ("text_for_a_size", key("head_dim", "32"), ("head_dim", "'32'", "whole number")),
            ("true_for_a_size", key("draft_vocab_size", True), ("draft_vocab_size", "True", "whole")),
            ("text_for_a_flag", key("fc_norm", "yes"), ("fc_norm", "'yes'", "true or false")),
            ("nested", key("eagle_config.norm_output", 1), ("eagle_config.norm_output", "1", "true or")),
            ("block", key("eagle_config", [1]), ("eagle_config", "[1]")),
            ("layer_type", key("layer_types", ["linear"]), ("layer_types.0", "'linear'")),
            ("logit_scale", key("logit_scale", -1.0), ("logit_scale", "-1.0", "greater than 0")),
            ("theta", key("rope_theta", 0), ("rope_theta", "0", "greater than 0", "trained with")),
            ("rope_block", key("rope_scaling", "yarn"), ("rope_scaling", "'yarn'", "an object")),
            ("factor", key("rope_scaling", {"factor": "8"}), ("rope_scaling.factor", "'8'", "a number")),
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
        words=("intermediate_size", "missing"),
    ),
    case(
        "config_is_well_formed", "speculators_k", "speculators",
        key("speculators_config.proposal_methods", [{"speculative_tokens": 0}]),
        words=("speculators_config.proposal_methods.0.speculative_tokens", "greater than 0"),
    ),
    case(
        "aux_layer_ids_exist", "beyond_n", "native", key(IDS, [1, 3, 9]),
        words=("[2, 4, 10]", "0 to N=8", "the input of layer id + 1", "aux_layers"),
    ),
    case(
        "aux_layer_ids_exist", "contradiction", "native", key(TOP_IDS, [1, 3, 5]),
        words=(TOP_IDS, IDS, "([1, 3, 5], [1, 2, 3])", "the same layers"),
    ),
    case(
        "aux_layer_ids_exist", "dflash_without_ids", "dflash",
        no_key("dflash_config.target_layer_ids"),
        words=("dflash_config.target_layer_ids", "missing", "a list of integers"),
    ),
    case(
        "aux_layer_ids_exist", "option_repeats", "native", options={"aux_layers": [2, 2, 5]},
        words=("[2, 2, 5]", "each layer once", "option aux_layers"),
    ),
    # Aux layers that are not named, miscounted, or listed out of order.
    case(
        "aux_layers_are_stated", "none", "native", no_key(IDS), words=(TOP_IDS, "[2, 4, 5] is taken"),
    ),
    case(
        "aux_layer_ids_may_be_inputs", "the_default", "native", key(IDS, [2, 4, 5]),
        words=("[2, 4, 5]", "layers [3, 5, 6]", '"input"'),
    ),
    case(
        "aux_order_is_unambiguous", "z_lab", "dflash", key("dflash_config.target_layer_ids", [5, 1, 3]),
        words=("[5, 1, 3]", "permuted to [2, 4, 6]", "z-lab", '"aux_layers": [2, 4, 6]'),
    ),
    case(
        "aux_order_is_unambiguous", "specforge", "native", key(IDS, [3, 1, 2]),
        words=("[3, 1, 2]", "follow the layers, [2, 3, 4]", '"aux_layers": [4, 2, 3]'),
    ),
    case(
        "aux_count_is_consistent", "num_aux_hidden_states", "native", key("num_aux_hidden_states", 5),
        words=("num_aux_hidden_states", "5", "3, the number of aux layers"),
    ),
    case(
        "aux_count_is_consistent", "num_aux_layers", "dflash", key("num_aux_layers", 2),
        words=("num_aux_layers", "2", "3, the number of aux layers"),
    ),
]
# fmt: on
