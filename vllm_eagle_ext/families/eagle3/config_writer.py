# SPDX-License-Identifier: Apache-2.0
"""Writes what vLLM reads of an EAGLE-3 draft next to what it reads of every draft."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_eagle_ext.draft import Case
from vllm_eagle_ext.draft.draft_config import FLAGS
from vllm_eagle_ext.draft.layer_ids import IDS_KEY, vllm_keys
from vllm_eagle_ext.draft.silent_keys import LAYER_BLOCK, without_nulls
from vllm_eagle_ext.draft.stock_gaps import UNKNOWN_ARCHITECTURES

_AT_ROOT = ("draft_vocab_size", "target_hidden_size", IDS_KEY, *FLAGS)  # in the speculators format
_DROPPED = ("architectures", "eagle_config", *_AT_ROOT)  # of the layer's block


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


def stock_config(case: Case, verifier: Mapping[str, Any] | None, k: int) -> dict[str, Any]:
    """Return the draft's config with the keys that it lacks for vLLM's class.

    Args:
        verifier: `name_or_path` and `architectures` of the target; None keeps the draft's own format.
        k: drafted tokens per step, which only the speculators format states.
    """
    spec = case.spec
    wanted = {**vllm_keys(spec.aux_layers), **{name: flag.value for name, flag in spec.flags.items()}}
    if spec.target_hidden_size != spec.hidden_size:
        wanted["target_hidden_size"] = spec.target_hidden_size
    if spec.format == "speculators":
        config = without_nulls(case.files.config)
        return {**config, **wanted, LAYER_BLOCK: config[LAYER_BLOCK] | vllm_keys(spec.aux_layers)}
    if verifier is not None:
        return _in_speculators_format({**case.flat, **wanted}, case, verifier, k)
    if spec.architecture in UNKNOWN_ARCHITECTURES:
        wanted["architectures"] = [spec.drafter.architecture.replace("EagleExt", "")]
    return {**case.flat, **{key: v for key, v in wanted.items() if case.flat.get(key, False) != v}}


def _in_speculators_format(
    config: Mapping[str, Any], case: Case, verifier: Mapping[str, Any], k: int
) -> dict[str, Any]:
    """Return a published config as speculators writes it, so that it names target and K itself."""
    heads = case.spec.heads
    # vLLM's class of this format has no defaults of a Llama or Qwen3 layer.
    layer = {
        "hidden_act": "silu", "num_key_value_heads": heads.kv, "head_dim": heads.dim,
        **{key: value for key, value in config.items() if key not in _DROPPED},
        "model_type": case.spec.drafter.backbone.model_type,
    }  # fmt: skip
    method = {"proposal_type": "greedy", "speculative_tokens": k}
    return {
        "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3",
        **{key: config[key] for key in _AT_ROOT if key in config},
        "draft_vocab_size": case.spec.vocabulary.size,
        "speculators_config": {
            "algorithm": "eagle3", "default_proposal_method": "greedy", "proposal_methods": [method],
            "verifier": dict(verifier),
        },
        LAYER_BLOCK: layer,
    }  # fmt: skip
