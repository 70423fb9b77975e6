# SPDX-License-Identifier: Apache-2.0
"""Writes what vLLM reads of an EAGLE-3 draft next to what it reads of every draft."""

from __future__ import annotations

from typing import Any

from vllm_eagle_ext.checkpoint import Case
from vllm_eagle_ext.checkpoint.flags import FLAGS
from vllm_eagle_ext.checkpoint.layer_ids import IDS_KEY


def write(config: Any, case: Case) -> None:
    """Write the flags where vLLM's drafter classes look for them.

    Args:
        config: vLLM's SpeculativeConfig, whose draft config is changed in place.
        case: the draft that was checked.
    """
    hf_config, spec = config.draft_model_config.hf_config, case.spec
    flags = {name: spec.flags[name].value for name in FLAGS}
    for name, value in flags.items():
        setattr(hf_config, name, value)
    nested = dict(getattr(hf_config, "eagle_config", None) or {})
    nested.pop(IDS_KEY, None)
    if spec.fuses_aux_states:
        nested[IDS_KEY] = list(spec.aux_layers.layer_ids)
    nested["use_aux_hidden_state"] = spec.fuses_aux_states
    nested["norm_before_fc"] = flags["norm_before_fc"]  # read here first
    hf_config.eagle_config = nested
    if spec.draft_window is not None:  # V1 drafts nothing where a text is longer than the draft's own
        config.draft_model_config.max_model_len = config.target_model_config.max_model_len
    _draft_to_the_end(config)


def _draft_to_the_end(config: Any) -> None:
    """Let V1 draft beyond the target's length.

    V1 drafts for no request of a step in which one has no room for K more tokens: the others lose their
    drafts, and their cache keeps a hole where the step's rows should be. EAGLE-3 needs no such room, its
    positions are clamped; drafting in parallel does. REMOVE WHEN V1's `_input_fits_in_drafter` goes by
    request, or V1 goes.
    """
    target, draft = config.target_model_config, config.draft_model_config
    if not config.parallel_drafting and draft.max_model_len == target.max_model_len:
        draft.max_model_len += config.num_speculative_tokens
