"""Norms that do not fit their flags."""

from __future__ import annotations

from tests.support.checkpoints import HIDDEN
from tests.support.drafts import LAYER
from tests.unit.draft.rules.broken import case
from tests.unit.draft.rules.changes import POST_NORM, key, more, no_key, no_tensor

# fmt: off
CASES = [
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
        "norm_output_is_unambiguous", "specforge", "native", *POST_NORM,
        words=("norm_output", "SpecForge up to 0.2.0", "the raw state", "`vllm-eagle verify --feedback`",
               '"norm_output": false'),
    ),
    case(
        "head_is_normed", "specforge", "native", key("norm_output", False),
        words=("norm_output", "False", "SpecForge up to 0.2.0", "without a norm before the head"),
    ),
    case(
        "norm_before_residual_is_stated", "missing", "speculators", no_key("norm_before_residual"),
        words=("norm_before_residual", "missing", "false is taken"),
    ),
]
# fmt: on
