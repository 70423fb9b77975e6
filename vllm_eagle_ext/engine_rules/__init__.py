# SPDX-License-Identifier: Apache-2.0
"""Rules about the engine around a draft: of a start, which raises their errors, and of `check` alike.

Those of `OF_VLLM` are vLLM's own, which a start has passed before this package is asked.
"""

from __future__ import annotations

from vllm_eagle_ext.engine_rules import (
    cache_groups,
    draft_vocabulary,
    parallel,
    speculative,
    speculative_keys,
    states,
    target,
    weights,
)

OF_VLLM = (target.the_target_is_as_long, speculative_keys.speculative_keys_are_vllms)
# Of an engine, whatever its draft is.
ENGINE_RULES = (states.replay_needs_states,)
# Of an engine with a draft that this package serves.
PAIR_RULES = (
    *parallel.RULES,
    *weights.RULES,
    draft_vocabulary.rows_can_be_kept,
    speculative.draft_length_fits,
    speculative.texts_stay_the_targets,
    speculative.one_length_stops_no_drafts,
    speculative.adapters_meet_their_rows,
    speculative.default_requests_are_served,
    speculative.prompts_have_tokens,
    *target.RULES,
    cache_groups.draft_cache_lies_in_one_group,
)
# Once vLLM has settled method and K.
SETTLED_PAIR_RULES = (cache_groups.shorter_drafts_stay_apart,)
# Of options that are for some engines only.
OPTION_RULES = (states.adaptive_option_is_used, draft_vocabulary.draft_vocabulary_is_used)
SETTLED_RULES = (
    speculative.one_token_prompts_stay_right,
    states.state_can_be_kept,
    states.short_rows_are_served,
    states.states_are_saved_in_time,
)
# Of a vLLM outside the tested range.
UNTESTED_RULES = (weights.vllm_is_tested,)
