# SPDX-License-Identifier: Apache-2.0
"""Rules about recurrent states: whether an engine can keep them as asked, with drafts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vllm_eagle_ext.draft.findings import Problem, Problems, Severity, rule
from vllm_eagle_ext.errors import HybridStateError, OptionsError
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS
from vllm_eagle_ext.memory.state_scheme import OPTION, Choice, choose, runner_obstacles
from vllm_eagle_ext.options import Options
from vllm_eagle_ext.start.rules.vllm_config import (
    architecture_of,
    device_of,
    dtype_of,
    runner_of,
    schedule_of,
)

_SCHEDULE = "speculative_config.num_speculative_tokens_per_batch_size"
_ADAPTIVE_OPTION = "additional_config.eagle_ext.adaptive_verification"
_ADAPTIVE_KEY = "enable_adaptive_verification"
_KERNELS_OPTION = "additional_config.eagle_ext.replay_kernels"
_OFFLOADING = "OffloadingConnector"


@rule(Severity.ERROR, error=HybridStateError)
def replay_needs_states(config: Any, options: Options) -> Problems:
    """`replay` needs drafts, and a target with recurrent states."""
    without = " without drafts" if config.speculative_config is None else ""
    architecture = architecture_of(config)
    if options.hybrid_state == "replay" and not _keeps_states(config):
        yield Problem(
            field=OPTION,
            value="replay",
            allowed=f"'auto' or 'per_token' for {architecture}{without}; 'replay' for "
            + ", ".join(REPLAYING_TARGETS),
            remedy="leave the option out",
        )


@rule(Severity.WARNING, error=OptionsError)
def adaptive_option_is_used(config: Any, options: Options) -> Problems:
    """`adaptive_verification` has vLLM's key, and a target that needs permission."""
    speculative = config.speculative_config
    is_used = _keeps_states(config) and speculative.enable_adaptive_verification
    if options.adaptive_verification and not is_used:
        yield Problem(
            field=_ADAPTIVE_OPTION,
            value=True,
            allowed=f'true with "{_ADAPTIVE_KEY}": true in the speculative config, for '
            + ", ".join(REPLAYING_TARGETS),
            remedy="leave the option out. It is ignored",
        )


@rule(Severity.WARNING, error=HybridStateError)
def states_are_saved_in_time(config: Any) -> Problems:
    """On V2 no recurrent states are offloaded."""
    connector = config.kv_transfer_config
    if connector is None or config.speculative_config is None or runner_of(config) != "v2":
        return
    if architecture_of(config) in REPLAYING_TARGETS and connector.has_connector(_OFFLOADING):
        yield Problem(
            field="KV connector",
            value=connector.kv_connector,
            allowed="no offloading of a target with recurrent states on vLLM's V2 runner. The runner "
            "clears a block that was handed on before its bytes are saved to the host. Where the cache "
            "is full, prefixes come back as zeros or as another request's. Texts are then wrong, also "
            "without a draft",
            remedy="serve without offloading",
        )


@rule(Severity.WARNING, error=HybridStateError)
def short_rows_are_served(config: Any, options: Options) -> Problems:
    """States are replayed where a CPU's kernels misplace steps of few drafts."""
    is_ours = _keeps_states(config) and not vllm_replays(config)
    if not (is_ours and device_of(config).short_drafts_crash):
        return
    if (choice := choose_scheme(config, options)).replays:
        return
    remedies = [problem.remedy for problem in unsupported_by_replay(config)]
    if options.hybrid_state != "auto":
        remedies.insert(0, "leave the option out")
    yield Problem(
        field=OPTION,
        value=options.hybrid_state,
        allowed=f"replay for {architecture_of(config)} on a CPU with vLLM 0.32, whose kernels misplace "
        "steps of fewer than K drafts: with structured output, at the end of max_model_len or a token "
        "budget the engine ends, or texts are wrong. One state block per draft token was chosen "
        f"because: {choice.reason}",
        remedy="; ".join(remedies),
    )


@rule(Severity.ERROR, error=HybridStateError)
def state_can_be_kept(config: Any, options: Options) -> Problems:
    """`hybrid_state` names a scheme that the engine can serve."""
    if _keeps_states(config):
        first = next(_state_problems(config, options), None)
        yield from () if first is None else (first,)


def _keeps_states(config: Any) -> bool:
    """Tell whether recurrent states of a target that can replay are kept next to drafts."""
    return config.speculative_config is not None and architecture_of(config) in REPLAYING_TARGETS


def _state_problems(config: Any, options: Options) -> Iterator[Problem]:
    from vllm.triton_utils import HAS_TRITON

    # What crashes whatever the scheme.
    if runner_of(config) == "v1" and config.cache_config.enable_prefix_caching and not HAS_TRITON:
        yield Problem(
            field="enable_prefix_caching",
            value=True,
            allowed=f"false for {architecture_of(config)} with drafts on vLLM's V1 runner without "
            "Triton, which crashes otherwise (run_fused_precopy has no CPU kernel)",
            remedy="--no-enable-prefix-caching, or LLM(enable_prefix_caching=False)",
        )
    # What keeps from replay that was asked for.
    obstacles = list(unsupported_by_replay(config)) if options.hybrid_state == "replay" else []
    if obstacles:
        first, *others = obstacles
        also = [f"also: {other.field} is {other.value!r}. Allowed: {other.allowed}" for other in others]
        yield Problem(
            field=first.field,
            value=first.value,
            allowed=f"{first.allowed}, with {OPTION} 'replay'",
            remedy="; ".join([f"{first.remedy}; or hybrid_state 'auto' or 'per_token'", *also]),
        )
    if vllm_replays(config):
        return
    # What the chosen scheme cannot serve.
    choice = choose_scheme(config, options)
    yield from _uneven_drafts(config, options, choice)
    if choice.replays and device_of(config).on_cpu and options.replay_kernels == "chunked":
        yield Problem(
            field=_KERNELS_OPTION,
            value="chunked",
            allowed="'auto' or 'sequential' on a CPU, where replay runs vLLM's C++ kernel",
            remedy="leave the option out",
        )


def _uneven_drafts(config: Any, options: Options, choice: Choice) -> Iterator[Problem]:
    """Refuse steps of fewer than K drafts where the scheme that was chosen cannot serve them.

    A schedule of K with one state block per draft token crashes vLLM's CPU kernels or gives wrong texts.
    Drafts that are trimmed on the device need replay and the option.
    """
    # One state block per draft token: kernels of CPUs, then of packed convolutions.
    target = architecture_of(config)
    if per_token_crashes(config) and not choice.replays:
        yield Problem(
            field=_SCHEDULE,
            value=schedule_of(config),
            allowed=f"a fixed K for {target} with one state block per draft token on a CPU, "
            "where this vLLM crashes or gives wrong texts in steps of fewer drafts (0.33 does not); the "
            f"scheme was chosen because: {choice.reason}",
            remedy="leave the key out, or keep the states by replay: hybrid_state 'auto' or 'replay'",
        )
    if per_token_misreads(config) and not choice.replays:
        yield Problem(
            field="enable_lora",
            value=True,
            allowed=f"false for {target} with drafts and one state block per draft token on a "
            "CPU that packs weights of convolutions, which vLLM's kernels then take for plain ones, and "
            f"texts are wrong; the scheme was chosen because: {choice.reason}",
            remedy="keep the states by replay, hybrid_state 'auto' or 'replay'; or serve no adapters",
        )
    # Drafts that are trimmed on the device.
    is_adaptive = config.speculative_config.enable_adaptive_verification
    if is_adaptive and not (choice.replays and options.adaptive_verification):
        yield Problem(
            field="speculative_config.enable_adaptive_verification",
            value=True,
            allowed=f"false for {target}; true with states kept by replay and "
            f"{_ADAPTIVE_OPTION} true, untested on GPUs. Chosen here: {choice.scheme}, {choice.reason}",
            remedy='leave the key out, or ask for both: {"eagle_ext": {"hybrid_state": "replay", '
            '"adaptive_verification": true}}',
        )


def unsupported_by_replay(config: Any) -> Iterator[Problem]:
    """List everything in an engine's configuration that replay cannot serve."""
    parallel = config.parallel_config
    connector = getattr(config.kv_transfer_config, "kv_connector", None)
    stages = parallel.pipeline_parallel_size
    context = max(parallel.decode_context_parallel_size, parallel.prefill_context_parallel_size)
    yield from runner_obstacles(
        device_of(config).platform, runner_of(config), dtype_of(config),
        prefix_caching=bool(config.cache_config.enable_prefix_caching),
    )  # fmt: skip
    # whether it is there, field, value, what is allowed, remedy
    ranks = "use tensor parallelism"
    for is_there, field, value, allowed, remedy in (
        (stages > 1, "pipeline_parallel_size", stages, "1", ranks),
        (context > 1, "context parallel size", context, "1", ranks),
        (connector is not None, "kv_transfer_config", connector, "none", "serve without a KV connector"),
        # Both would add a record to the state, and both commit.
        (vllm_replays(config), "use_replayssm", True,
         "false: with it vLLM replays this target's states",
         "leave --use-replayssm out, or leave the states to vLLM"),
        (parallel.use_ubatching, "enable_dbo", True, "false", "serve without dual batch overlap"),
    ):  # fmt: skip
        if is_there:
            yield Problem(field=field, value=value, allowed=allowed, remedy=remedy)


def choose_scheme(config: Any, options: Options) -> Choice:
    """Choose how the recurrent states of a run are kept; K is known.

    Replay that is asked for is taken: whether it can be had is for the rule `state_can_be_kept`.
    """
    device, caches = device_of(config), bool(config.cache_config.enable_prefix_caching)
    return choose(
        options.hybrid_state, k=config.speculative_config.num_speculative_tokens, device=device,
        prefix_caching=caches, obstacles=list(unsupported_by_replay(config)),
    )  # fmt: skip


def needs_replay(config: Any) -> bool:
    """Tell whether some steps verify fewer drafts than the per-token scheme can serve."""
    is_adaptive = bool(config.speculative_config.enable_adaptive_verification)
    return per_token_crashes(config) or per_token_misreads(config) or is_adaptive


def vllm_replays(config: Any) -> bool:
    """Tell whether vLLM replays the target's states by itself (--use-replayssm)."""
    return bool(config.cache_config.use_replayssm) and bool(config.model_config.supports_replayssm)


def per_token_crashes(config: Any) -> bool:
    """Tell whether a schedule of K meets kernels that need all K drafts."""
    return bool(schedule_of(config)) and device_of(config).short_drafts_crash


def per_token_misreads(config: Any) -> bool:
    """Tell whether vLLM's CPU kernels would take packed weights of a convolution for plain.

    vLLM packs those of bfloat16 on some CPUs, which it asks itself.
    """
    if config.lora_config is None or dtype_of(config) != "bfloat16" or not device_of(config).on_cpu:
        return False
    import torch
    from vllm.model_executor.layers.mamba.ops.cpu.gdn_attention import is_arm_bf16

    return bool(torch.cpu._is_avx512_bf16_supported() or is_arm_bf16())
