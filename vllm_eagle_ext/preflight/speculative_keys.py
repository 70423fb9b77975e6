# SPDX-License-Identifier: Apache-2.0
"""Refuses further keys of speculative_config that vLLM has not, or takes in another type."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import TypeAdapter, ValidationError

from vllm_eagle_ext.errors import SpeculativeConfigError

_TEXT, _NUMBER, _TRUTH = str, int, bool
# Those of vLLM 0.32's SpeculativeConfig that a user gives. None: vLLM judges the value.
KEYS: Mapping[str, type | None] = {
    "attention_backend": None,
    "code_revision": _TEXT,
    "disable_eagle_block_drop": _TRUTH,
    "disable_padded_drafter_batch": _TRUTH,
    "draft_load_config": None,
    "draft_sample_method": _TEXT,
    "draft_tensor_parallel_size": _NUMBER,
    "dspark_draft_topk": _NUMBER,
    "enable_adaptive_verification": _TRUTH,
    "enforce_eager": _TRUTH,
    "index_share_for_mtp_iteration": _TRUTH,
    "kv_cache_dtype": _TEXT,
    "max_model_len": _NUMBER,
    "method": _TEXT,
    "model": _TEXT,
    "moe_backend": _TEXT,
    "num_speculative_tokens": _NUMBER,
    "num_speculative_tokens_per_batch_size": None,
    "parallel_drafting": _TRUTH,
    "prompt_lookup_max": _NUMBER,
    "prompt_lookup_min": _NUMBER,
    "quantization": _TEXT,
    "rejection_sample_method": _TEXT,
    "revision": _TEXT,
    "suffix_decoding_max_cached_requests": _NUMBER,
    "suffix_decoding_max_spec_factor": None,
    "suffix_decoding_max_tree_depth": _NUMBER,
    "suffix_decoding_min_token_prob": None,
    "synthetic_acceptance_length": None,
    "synthetic_acceptance_rates": None,
    "tensor_parallel_size": _NUMBER,
    "use_heterogeneous_vocab": _TRUTH,
    "use_local_argmax_reduction": _TRUTH,
}
# vLLM fills these in itself.
INNER = frozenset(
    {"draft_model_config", "draft_parallel_config", "target_model_config", "target_parallel_config"}
)
_NAMES = {str: "text", int: "a whole number", bool: "true or false"}


def refuse_foreign_keys(given: Mapping[str, Any]) -> None:
    """Refuse what vLLM's SpeculativeConfig would not take.

    Args:
        given: further keys, spelt as vLLM does.

    Raises:
        SpeculativeConfigError: an unknown key, or a value of another type.
    """
    for key, value in given.items():
        if key not in KEYS:
            raise _unknown(key, value)
        kind = KEYS[key]
        # Null is the default of most keys; whether it is one here, vLLM says.
        if kind is not None and value is not None and not _fits(kind, value):
            raise SpeculativeConfigError(
                field=f"speculative_config.{key}",
                value=value,
                allowed=_NAMES[kind],
                remedy="correct the value, or leave the key out",
            )


def _fits(kind: type, value: object) -> bool:
    """Convert as vLLM does: "5" is a whole number too."""
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return False
    return True


def _unknown(key: str, value: object) -> SpeculativeConfigError:
    close = get_close_matches(key, KEYS, n=1)
    hint = f'; did you mean "{close[0]}"?' if close else ""
    return SpeculativeConfigError(
        field=f"speculative_config.{key}",
        value=value,
        allowed=f"the keys {', '.join(sorted(KEYS))}",
        remedy=f"remove the key or correct its spelling{hint}",
    )
