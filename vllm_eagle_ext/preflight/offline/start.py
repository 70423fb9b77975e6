# SPDX-License-Identifier: Apache-2.0
"""Foresees what an engine's start would make of the draft beyond its files, without vLLM."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from vllm_eagle_ext.checkpoint import Case, Finding, Severity
from vllm_eagle_ext.checkpoint.draft_config import published_architecture
from vllm_eagle_ext.checkpoint.findings import Problem
from vllm_eagle_ext.checkpoint.rope_config import read_rope, rope_problems
from vllm_eagle_ext.checkpoint.rules.asked import wanted_runner
from vllm_eagle_ext.checkpoint.target_facts import text_config
from vllm_eagle_ext.compat import cpu_needs_all_drafts, is_tested, was_run
from vllm_eagle_ext.errors import EagleExtError, HybridStateError, SpeculativeConfigError
from vllm_eagle_ext.memory.chunked_kernels import dtype_of_width, hindrance, refuse_on_cpu
from vllm_eagle_ext.memory.deployment import OLDEST_RELEASE
from vllm_eagle_ext.memory.geometry import served_dtype, served_state_bytes
from vllm_eagle_ext.memory.state_scheme import (
    REPLAYING_TARGETS,
    Situation,
    choose,
    planned_prefix_caching,
    refuse_uneven_drafts,
    refuse_what_crashes,
)
from vllm_eagle_ext.preflight.capture import refuse_embeddings
from vllm_eagle_ext.preflight.cpu_kernels import BF16_FALLBACK, refuse_missing_kernels
from vllm_eagle_ext.preflight.kv_groups import refuse_scattered
from vllm_eagle_ext.preflight.multimodal import NAMED, STATING_IT, no_image_token
from vllm_eagle_ext.preflight.offline.option_checks import checks_of_options, named_connector
from vllm_eagle_ext.preflight.offline.platform import Platform, find_cpu_kernels, find_deployment
from vllm_eagle_ext.preflight.offline.wishes import EngineWishes, Runner
from vllm_eagle_ext.preflight.online_quantisation import check_online_quantisation
from vllm_eagle_ext.preflight.other_texts import KEY as OTHER_TEXTS
from vllm_eagle_ext.preflight.other_texts import refuse_other_texts
from vllm_eagle_ext.preflight.parallel import check_ranks
from vllm_eagle_ext.preflight.speculative_keys import refuse_foreign_keys
from vllm_eagle_ext.preflight.untested import refuse_gaps

Check = Callable[[], object]  # raises an EagleExtError
_GUESSES = {"images_are_known_to_v1"}
# A start logs them.
_WARNINGS = _GUESSES | {
    "adaptive_option_is_used",
    "states_are_saved_in_time",
    "one_token_prompts_stay_right",
    "texts_stay_the_targets",
}
_CONTEXT_PARALLEL = ("decode_context_parallel_size", "prefill_context_parallel_size")
_ANY_LENGTH = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
_LENIENT = {"draft_cache_lies_in_one_group"}  # `strict: false` makes a warning of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Describes the engine that the printed command starts."""

    platform: Platform
    runner: Runner
    tp: int
    prefix_caching: bool | None
    state: str | None = None  # how a hybrid target's recurrent states are kept
    refusals: tuple[Finding, ...] = ()


def plan_start(
    target: Mapping[str, Any], case: Case | None, wishes: EngineWishes, platform: Platform
) -> Start:
    """Decide what the command leaves open, by the rules of a start, and collect its refusals.

    Args:
        target: the target's config.json.
        case: of a supported draft; None: only the options are looked at.
    """
    architecture = published_architecture(target)
    caches = planned_prefix_caching(architecture, platform.name, wishes.prefix_caching)
    start = Start(platform=platform, runner=_runner(platform, case), tp=wishes.tp, prefix_caching=caches)
    kernels = find_cpu_kernels(platform)
    checks: dict[str, Check] = {"the_target_is_as_long": partial(_refuse_length, target, wishes)}
    if was_run(platform.vllm or OLDEST_RELEASE):  # another release may have further keys
        checks["speculative_keys_are_vllms"] = partial(refuse_foreign_keys, wishes.speculative)
    if wishes.options.enabled:
        checks |= checks_of_options(architecture, case, wishes, runner=start.runner)
    if case is not None:
        checks |= _of_the_pair(target, architecture, case, wishes, start)
        if kernels:
            checks["cpu_has_the_kernels"] = partial(refuse_missing_kernels, case, kernels)
    found = [finding for name, check in checks.items() for finding in _refused_start(name, check)]
    if case is not None and kernels and not kernels.bf16:
        found += _fallback(target, wishes)
    if case is not None and architecture in REPLAYING_TARGETS:
        state, refused = _state(target, wishes, start)
        return replace(start, state=state, refusals=(*found, *refused))
    return replace(start, refusals=tuple(found))


def _fallback(target: Mapping[str, Any], wishes: EngineWishes) -> Iterator[Finding]:
    """Warn, as a start does, of a dtype for which the CPU has no kernel of its own."""
    asked = wishes.engine.get("dtype", "auto")
    dtype = served_dtype(target) if asked == "auto" else str(asked)
    if dtype == "bfloat16":
        problem = Problem(field="dtype", value=dtype, message=BF16_FALLBACK)
        yield Finding("dtype_has_a_kernel", Severity.WARNING, problem, can_run=True)


def _refuse_length(target: Mapping[str, Any], wishes: EngineWishes) -> None:
    """Refuse by vLLM's rule. vLLM itself judges a rope that is stretched, or one per layer type.

    Raises:
        SpeculativeConfigError: more positions than the target has.
    """
    text, asked = text_config(target), wishes.max_model_len
    most, own = text.get("max_position_embeddings"), text.get("model_max_length")
    if asked is None or type(most) is not int or rope_problems(text):
        return
    allowed = max(most, own) if type(own) is int else most
    is_left = read_rope(text).factor or os.environ.get(_ANY_LENGTH) in ("1", "true")
    if asked > allowed and not is_left:
        raise SpeculativeConfigError(
            field="--max-model-len",
            value=asked,
            allowed=f"up to {allowed}, the positions of the target",
            remedy=f"ask for {allowed} or fewer: vLLM refuses more without {_ANY_LENGTH}=1, with which "
            "the target may answer with nonsense beyond them",
        )


def _runner(platform: Platform, case: Case | None) -> Runner:
    """Name the runner that the command asks for where the draft needs it, else vLLM's choice."""
    if platform.name == "cpu":  # V2 needs Triton
        return "v1"
    wanted = wanted_runner(case.spec) if case else None
    return wanted[0] if wanted else "v2"


def _of_the_pair(
    target: Mapping[str, Any], architecture: str, case: Case, wishes: EngineWishes, start: Start
) -> dict[str, Check]:
    """List what a start asks of target and draft together, name by name, as `draft_checks.py` does."""
    text, found = text_config(target), start.platform.vllm
    checks: dict[str, Check] = {
        "target_hands_out_its_embeddings": partial(refuse_embeddings, architecture, case.spec),
        "ranks_share_evenly": partial(
            check_ranks, wishes.tp, text, case, wishes.speculative.get("draft_tensor_parallel_size")
        ),
        "draft_can_be_quantised": partial(
            check_online_quantisation,
            wishes.speculative.get("quantization"),
            case.spec,
            on_cpu=start.platform.name == "cpu",
        ),
        "texts_stay_the_targets": partial(refuse_other_texts, wishes.speculative.get(OTHER_TEXTS)),
    }
    if start.runner == "v1":
        checks["draft_cache_lies_in_one_group"] = partial(refuse_scattered, text, case.spec)
        checks["images_are_known_to_v1"] = partial(_images, target, architecture, wishes)
    if found and not is_tested(found) and not wishes.options.untested_vllm:
        checks["vllm_is_tested"] = partial(refuse_gaps, case, found)
    return checks


def _images(target: Mapping[str, Any], architecture: str, wishes: EngineWishes) -> None:
    """Guess whether V1 finds the image token; a refusal becomes a warning.

    vLLM's class, whose name decides, may serve several architectures, and only vLLM knows which.
    """
    sees = any(isinstance(target.get(f"{sense}_config"), Mapping) for sense in ("vision", "audio"))
    overrides = wishes.engine.get("hf_overrides")
    stated = {**target, **(overrides if isinstance(overrides, Mapping) else {})}
    if sees and architecture not in (*NAMED, *STATING_IT) and "image_token_index" not in stated:
        raise no_image_token(architecture, architecture, stated.get("image_token_id"))


def _state(
    target: Mapping[str, Any], wishes: EngineWishes, start: Start
) -> tuple[str | None, tuple[Finding, ...]]:
    deployment, text = find_deployment(start.platform), text_config(target)
    is_cuda = start.platform.name == "cuda"
    situation = Situation(
        architecture=published_architecture(target),
        k=wishes.k,
        runner=start.runner,
        platform=start.platform.name,
        prefix_caching=start.prefix_caching is not False,
        has_triton=start.platform.name != "cpu",
        dtype=served_dtype(target),
        prefill_exports=deployment.exports_states(text.get("linear_key_head_dim", 0)),
        capability=deployment.capability if is_cuda else None,
        state_width=served_state_bytes(target),
        kernels=wishes.options.replay_kernels,
        not_chunked=hindrance(
            text.get("linear_key_head_dim", 0),
            text.get("linear_value_head_dim", 0),
            1 + wishes.k,
            served_dtype(target),
            dtype_of_width(served_state_bytes(target)),
        ),
        pipeline_parallel_size=wishes.ranks("pipeline_parallel_size"),
        context_parallel_size=max(map(wishes.ranks, _CONTEXT_PARALLEL)),
        kv_connector=named_connector(wishes.engine),
        lora=bool(wishes.engine.get("enable_lora")),
        microbatches=bool(wishes.engine.get("enable_dbo")) or wishes.ranks("ubatch_size") > 1,
        k_by_batch_size=wishes.schedule,
        short_drafts_crash=cpu_needs_all_drafts(deployment.release),
        adaptive_verification=bool(wishes.speculative.get("enable_adaptive_verification")),
        adaptive_verification_allowed=wishes.options.adaptive_verification,
    )
    try:
        refuse_what_crashes(situation)
        choice = choose(situation, wishes.options.hybrid_state)
        refuse_uneven_drafts(situation, choice)
        if choice.replays:
            refuse_on_cpu(situation.platform, situation.kernels)
    except HybridStateError as error:
        return None, (_finding("state_can_be_kept", error),)
    return str(choice), ()


def _refused_start(name: str, check: Check) -> Iterator[Finding]:
    try:
        check()
    except EagleExtError as error:
        yield _finding(name, error)


def _finding(name: str, error: EagleExtError) -> Finding:
    remedy = "; ".join([error.remedy, *error.more])
    problem = Problem(field=error.field, value=error.value, allowed=error.allowed, remedy=remedy)
    severity = Severity.WARNING if name in _WARNINGS else Severity.ERROR
    return Finding(name, severity, problem, name in _WARNINGS | _LENIENT)
