# SPDX-License-Identifier: Apache-2.0
"""Rules about the keys of the speculative config, and about what runs next to drafts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from pydantic import TypeAdapter, ValidationError

from vllm_eagle_ext.checkpoint import Case
from vllm_eagle_ext.checkpoint.findings import Problem, Severity, rule
from vllm_eagle_ext.compat import was_run
from vllm_eagle_ext.engine import EngineFacts
from vllm_eagle_ext.errors import HybridStateError, SpeculativeConfigError

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
SAMPLING = "rejection_sample_method"
_LOSSY = ("fly", "synthetic")  # "fly": since 0.33
SCHEDULER = "vllm_eagle_ext.schedulers.build_scheduler"  # which vLLM resolves and calls


@rule(Severity.ERROR, error=SpeculativeConfigError)
def speculative_keys_are_vllms(engine: EngineFacts) -> Iterable[Problem]:
    """Refuse keys that vLLM's SpeculativeConfig has not, or takes in another type."""
    if engine.release_is_known and not was_run(engine.release):  # it may have further keys
        return
    for key, value in engine.speculative.items():
        kind = KEYS.get(key)
        if key not in KEYS:
            close = get_close_matches(key, KEYS, n=1)
            hint = f'; did you mean "{close[0]}"?' if close else ""
            yield Problem(
                field=f"speculative_config.{key}",
                value=value,
                allowed=f"the keys {', '.join(sorted(KEYS))}",
                remedy=f"remove the key or correct its spelling{hint}",
            )
        # Null is the default of most keys; whether it is one here, vLLM says.
        elif kind is not None and value is not None and not _fits(kind, value):
            yield Problem(
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


@rule(Severity.WARNING)
def texts_stay_the_targets(case: Case) -> Iterable[Problem]:
    """Warn of a verification whose texts are not those of the target without a draft."""
    method = case.engine.speculative.get(SAMPLING)
    if method in _LOSSY:
        yield Problem(
            field=f"speculative_config.{SAMPLING}",
            value=method,
            allowed='"standard" or "block" for the texts of the target: this one accepts drafts that '
            "the target would reject, and texts differ from those without a draft",
            remedy="leave the key out, unless other texts are what you want",
        )


@rule(Severity.ERROR, error=SpeculativeConfigError)
def padding_is_cut_off(case: Case) -> Iterable[Problem]:
    """Refuse the shorter way to the likeliest token for a shared head with padding, which it keeps."""
    key = "use_local_argmax_reduction"
    if case.target.padding and case.spec.head == "shared" and case.engine.speculative.get(key):
        yield Problem(
            field=f"speculative_config.{key}",
            value=True,
            allowed=f"false for this draft: the target's head has {case.target.padding} rows after its "
            "vocabulary, which vLLM leaves out of whole logits only",
            remedy="leave the key out",
        )


@rule(Severity.WARNING)
def one_length_stops_no_drafts(case: Case) -> Iterable[Problem]:
    """Warn of a length of the draft that V1 holds against the longest request of each step."""
    engine, key = case.engine, "max_model_len"
    asked, served = engine.speculative.get(key), engine.max_model_len
    if type(asked) is not int or engine.runner == "v2" or case.spec.draft_window is not None:
        return
    if served is None or asked < served:
        yield Problem(
            field=f"speculative_config.{key}",
            value=asked,
            allowed="none, or the engine's: while one request is longer, vLLM's V1 runner drafts for no "
            "request at all",
            remedy="leave the key out: a draft costs no more in long texts; draft_window bounds what it "
            "reads",
        )


@rule(Severity.WARNING, error=HybridStateError)
def one_token_prompts_stay_right(engine: EngineFacts) -> Iterable[Problem]:
    """Warn of another scheduler on a target with recurrent states: see `schedulers.py`.

    With a schedule of K vLLM pads no request. Ours may stand in a copy of an earlier start's arguments.
    """
    if engine.is_hybrid and engine.schedule is None and engine.scheduler not in (None, SCHEDULER):
        yield Problem(
            field="scheduler_cls",
            value=engine.scheduler,
            allowed="none with a draft and a target with recurrent states: vLLM's schedulers add "
            "placeholder drafts to a prompt of one token that joins running requests, and its text is "
            "wrong; this package's scheduler does not",
            remedy="leave the option out, or send no such prompts",
        )
