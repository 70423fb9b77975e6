# SPDX-License-Identifier: Apache-2.0
"""The rule about keys and values of the speculative config: what vLLM takes, restated without vLLM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import TypeAdapter, ValidationError

from vllm_eagle_ext.checkpoint.findings import Problem, Severity, rule
from vllm_eagle_ext.engine import NEWEST_RELEASE, EngineFacts
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.releases import is_from, is_tested

_TEXT, _NUMBER, _TRUTH, _SHARE = str, int, bool, float
# Those of SpeculativeConfig, in vLLM 0.32 or 0.33, that a user gives. None: vLLM judges the value.
KEYS: Mapping[str, Any] = {
    "attention_backend": None,
    "code_revision": _TEXT,
    "disable_eagle_block_drop": _TRUTH,
    "disable_lookahead_block_hashes": _TRUTH,
    "disable_padded_drafter_batch": _TRUTH,
    "draft_lm_head_quantization": _TEXT,
    "draft_load_config": None,
    "draft_sample_method": _TEXT,
    "draft_tensor_parallel_size": _NUMBER,
    "dspark_draft_topk": _NUMBER,
    "enable_adaptive_verification": _TRUTH,
    "enforce_eager": _TRUTH,
    "fly_entropy_threshold": _SHARE,
    "fly_entropy_top_k": _NUMBER,
    "fly_window_size": _NUMBER,
    "index_share_for_mtp_iteration": _TRUTH,
    "kv_cache_dtype": _TEXT,
    "max_model_len": _NUMBER,
    "method": _TEXT,
    "model": _TEXT,
    "moe_backend": _TEXT,
    "num_speculative_tokens": _NUMBER,
    "num_speculative_tokens_per_batch_size": list[tuple[int, int, int]],
    "parallel_drafting": _TRUTH,
    "prompt_lookup_max": _NUMBER,
    "prompt_lookup_min": _NUMBER,
    "quantization": _TEXT,
    "rejection_sample_method": _TEXT,
    "revision": _TEXT,
    "suffix_decoding_max_cached_requests": _NUMBER,
    "suffix_decoding_max_spec_factor": _SHARE,
    "suffix_decoding_max_tree_depth": _NUMBER,
    "suffix_decoding_min_token_prob": _SHARE,
    "synthetic_acceptance_length": _SHARE,
    "synthetic_acceptance_rates": list[float],
    "use_heterogeneous_vocab": _TRUTH,
    "use_local_argmax_reduction": _TRUTH,
    "xpress_topc": _NUMBER,
}
SINCE_033 = frozenset(
    {
        "disable_lookahead_block_hashes", "draft_lm_head_quantization", "fly_entropy_threshold",
        "fly_entropy_top_k", "fly_window_size", "xpress_topc",
    }
)  # fmt: skip
# vLLM fills these in itself.
INNER = frozenset(
    {"draft_model_config", "draft_parallel_config", "target_model_config", "target_parallel_config"}
)
# A field that vLLM has to say that it is the wrong one.
MISTAKEN = "tensor_parallel_size"
_NAMES = {
    str: "text", int: "a whole number", bool: "true or false", float: "a number",
    list[float]: "a list of numbers",
    list[tuple[int, int, int]]: "a list of lists of three whole numbers",
}  # fmt: skip
AT_LEAST_ONE = (
    "draft_tensor_parallel_size", "dspark_draft_topk", "fly_entropy_top_k", "fly_window_size",
    "max_model_len", "num_speculative_tokens",
    "prompt_lookup_max", "prompt_lookup_min",
)  # fmt: skip
AT_LEAST_ZERO = ("fly_entropy_threshold", "xpress_topc")
CHOICES: Mapping[str, frozenset[str]] = {
    "draft_sample_method": frozenset({"greedy", "probabilistic"}),
    "kv_cache_dtype": frozenset(
        {
            "auto", "bfloat16", "float16", "fp8", "fp8_ds_mla", "fp8_e4m3", "fp8_e5m2", "fp8_inc",
            "fp8_per_token_head", "int4_per_token_head", "int8_per_token_head", "nvfp4", "nvfp4_4over6",
            "nvfp4_ds_mla", "turboquant_3bit_nc", "turboquant_4bit_nc", "turboquant_k3v4_nc",
            "turboquant_k8v4", "ultraquant_4bit",
        }
    ),
    "moe_backend": frozenset(
        {
            "aiter", "aiter_mega_moe", "aiter_triton_mxfp4_bf16", "auto", "b12x", "batched_triton",
            "cutlass", "deep_gemm", "deep_gemm_mega_moe", "emulation", "flashinfer_b12x",
            "flashinfer_cutedsl", "flashinfer_cutlass", "flashinfer_moe_ep_cutedsl",
            "flashinfer_moe_ep_mega_deep_gemm", "flashinfer_trtllm", "flydsl", "hpc", "humming",
            "marlin", "rdna3", "triton", "triton_unfused",
        }
    ),
    "rejection_sample_method": frozenset({"standard", "synthetic", "block"}),
}  # fmt: skip
# What 0.33 takes in their place. None: platforms may add to them.
CHOICES_033: Mapping[str, frozenset[str] | None] = {
    **CHOICES,
    "draft_lm_head_quantization": frozenset({"fp8", "nvfp4"}),
    "kv_cache_dtype": None,
    "moe_backend": CHOICES["moe_backend"] | {"aiter_triton_mxfp4_mxfp4"},
    "rejection_sample_method": CHOICES["rejection_sample_method"] | {"fly"},
}
NO_NULL = frozenset(
    {
        "disable_eagle_block_drop", "disable_lookahead_block_hashes", "disable_padded_drafter_batch",
        "draft_sample_method", "enable_adaptive_verification", "fly_entropy_threshold",
        "fly_entropy_top_k", "parallel_drafting",
        "rejection_sample_method", "suffix_decoding_max_cached_requests",
        "suffix_decoding_max_spec_factor", "suffix_decoding_max_tree_depth",
        "suffix_decoding_min_token_prob", "use_heterogeneous_vocab", "use_local_argmax_reduction",
    }
)  # fmt: skip
# Keys of one method, which vLLM refuses with any other.
_OF_ONE_METHOD = {
    "dspark_draft_topk": "dspark",
    "index_share_for_mtp_iteration": "mtp",
    "use_heterogeneous_vocab": "draft_model",
}
_RATES, _LENGTH = "synthetic_acceptance_rates", "synthetic_acceptance_length"
# Of other engines and of vLLM's flags, where letters do not tell.
ALSO_CALLED = {
    "num_steps": "num_speculative_tokens",
    "k": "num_speculative_tokens",
    "draft_model": "model",
    "speculative_model": "model",
    "algorithm": "method",
    "tp": "draft_tensor_parallel_size",
    "draft_tp": "draft_tensor_parallel_size",
    "acceptance_method": "rejection_sample_method",
    "tensor_parallel_size": "draft_tensor_parallel_size",
}
SAMPLING = "rejection_sample_method"


@rule(Severity.ERROR, error=SpeculativeConfigError)
def speculative_keys_are_vllms(engine: EngineFacts) -> Iterable[Problem]:
    """Refuse keys that vLLM's SpeculativeConfig has not, and values that it does not take."""
    keys = _keys(engine)
    for key, value in engine.speculative.items():
        if keys is not None and key not in keys:
            yield _unknown(key, value, keys)
        elif allowed := _refused(key, value, engine):
            yield Problem(
                field=f"speculative_config.{key}",
                value=value,
                allowed=allowed,
                remedy="correct the value, or leave the key out",
            )
        elif allowed := _misplaced(key, value, engine):
            place = f"speculative_config.{key}"
            yield Problem(field=place, value=value, allowed=allowed, remedy="leave the key out")
    yield from _synthetic(engine)
    yield from _fly(engine)


def _misplaced(key: str, value: object, engine: EngineFacts) -> str | None:
    """Say what a key goes with, where vLLM refuses it with the rest; None: it does not."""
    method = _OF_ONE_METHOD.get(key)
    if method and value not in (None, False) and engine.method not in (None, method):
        return f'no such key with "method": "{engine.method}": it is for "{method}"'
    if (
        key in (_RATES, _LENGTH)
        and value is not None
        and engine.speculative.get(SAMPLING) != "synthetic"
    ):
        return f'no such key without "{SAMPLING}": "synthetic"'
    return None


def _synthetic(engine: EngineFacts) -> Iterable[Problem]:
    """Find how many drafts a verification that only pretends is to accept, where vLLM refuses that."""
    given, k = engine.speculative, engine.k
    rates: Any = given.get(_RATES)
    length: Any = given.get(_LENGTH)
    if given.get(SAMPLING) != "synthetic":
        return
    fault: tuple[str, object, str] | None = None
    if (rates is None) == (length is None):
        fault = SAMPLING, "synthetic", f'"synthetic" with one of {_RATES} and {_LENGTH}'
    elif k and fits(float, length) and not 1 <= float(length) <= k + 1:
        fault = _LENGTH, length, f"1 to {k + 1}, which is 1 + num_speculative_tokens"
    elif k and fits(list[float], rates) and not _falls([float(rate) for rate in rates], k):
        fault = _RATES, rates, f"{k} numbers from 0 to 1, none larger than the one before"
    if fault:
        key, value, allowed = fault
        remedy = f'give one of the two as it is allowed, or leave out "{SAMPLING}": "synthetic"'
        yield Problem(field=f"speculative_config.{key}", value=value, allowed=allowed, remedy=remedy)


def _fly(engine: EngineFacts) -> Iterable[Problem]:
    """Find a K that is too small for FLy, 0.33's verification by a window of later tokens."""
    given, k = engine.speculative, engine.k
    window: Any = given.get("fly_window_size")
    if given.get(SAMPLING) != "fly" or not k:
        return
    least = int(window) + 1 if fits(int, window) else 2
    if k < least:
        yield Problem(
            field="num_speculative_tokens",
            value=k,
            allowed=f'at least {least} with "{SAMPLING}": "fly" and this fly_window_size',
            remedy=f'raise K, or leave out "{SAMPLING}": "fly"',
        )


def _falls(rates: list[float], k: int) -> bool:
    return len(rates) == k and all(0 <= rate <= 1 for rate in rates) and rates == sorted(rates)[::-1]


def _keys(engine: EngineFacts) -> frozenset[str] | None:
    """Return the keys of the release that serves; None: it is not known."""
    if not engine.release_is_known:
        return frozenset(KEYS)
    if not is_tested(engine.release):
        return None
    return frozenset(KEYS) if is_from(engine.release, "0.33") else frozenset(KEYS) - SINCE_033


def _unknown(key: str, value: object, keys: frozenset[str]) -> Problem:
    close = (
        [ALSO_CALLED[key]]
        if key in ALSO_CALLED
        else get_close_matches(key, sorted(keys), n=1, cutoff=0.75)
    )
    hint = f'write "{close[0]}", if that is meant, or ' if close else ""
    return Problem(
        field=f"speculative_config.{key}",
        value=value,
        allowed=f"the keys {', '.join(sorted(keys))}",
        remedy=f"{hint}remove the key",
    )


def _refused(key: str, value: object, engine: EngineFacts) -> str | None:
    """Say what vLLM takes, of a value that it refuses; None: it may be taken."""
    # Where another machine may serve, the newest release takes most.
    release = engine.release if engine.release_is_known else NEWEST_RELEASE
    kind, choices = KEYS.get(key), choices_of(release).get(key)
    if key == "draft_load_config" and value is not None and not isinstance(value, Mapping):
        return "an object with the fields of vLLM's LoadConfig"
    if value is None:
        return _NAMES[kind] if kind and key in NO_NULL else None
    if kind is not None and not fits(kind, value):
        return _NAMES[kind]
    if key in AT_LEAST_ONE and int(value) < 1:  # type: ignore[call-overload]
        return "a whole number of at least 1"
    if key in AT_LEAST_ZERO and float(value) < 0:  # type: ignore[arg-type]
        return "a number of at least 0"
    if choices and str(value) not in choices:
        return ", ".join(sorted(choices))
    return None


def choices_of(release: str) -> Mapping[str, frozenset[str] | None]:
    """Return the values that a release takes, by key; a later one may have more, so none is refused."""
    if not is_tested(release):
        return {}
    return CHOICES_033 if is_from(release, "0.33") else CHOICES


def fits(kind: Any, value: object) -> bool:
    """Convert as vLLM does: "5" is a whole number too."""
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return False
    return True
