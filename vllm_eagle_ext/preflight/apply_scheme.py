# SPDX-License-Identifier: Apache-2.0
"""Chooses how the recurrent states of a start are kept, and gives the target the class that does it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from vllm_eagle_ext import architectures, compat, metrics
from vllm_eagle_ext.checkpoint.families.registry import method_drafts_in_parallel
from vllm_eagle_ext.errors import HybridStateError, OptionsError
from vllm_eagle_ext.log import get_logger, log_once
from vllm_eagle_ext.memory.adaptive_option import refuse_without_drafts, refuse_without_use
from vllm_eagle_ext.memory.chunked_kernels import hindrance, refuse_on_cpu
from vllm_eagle_ext.memory.connectors import warn_of_late_saves
from vllm_eagle_ext.memory.deployment import Deployment
from vllm_eagle_ext.memory.geometry import STATE_DTYPE_UNREAD
from vllm_eagle_ext.memory.state_scheme import (
    OPTION,
    REPLAYING_TARGETS,
    Situation,
    choose,
    refuse_uneven_drafts,
    refuse_what_crashes,
)
from vllm_eagle_ext.options import Options
from vllm_eagle_ext.preflight.engine_deployment import connector_of, read_deployment
from vllm_eagle_ext.preflight.launch import Launch
from vllm_eagle_ext.resolved_marker import write_marker

if TYPE_CHECKING:
    import torch

logger = get_logger(__name__)


def apply_hybrid_state(launch: Launch) -> None:
    """Choose once the draft is settled; a target without gated delta nets stays as it is.

    Raises:
        HybridStateError: replay is asked for and cannot be had, or vLLM would crash.
    """
    architecture = launch.target.architecture
    _warn_of_unused_option(launch)
    if architecture not in REPLAYING_TARGETS:
        return
    deployment = read_deployment(launch.engine_args)
    situation = _situation(launch, deployment)
    refuse_what_crashes(situation)
    choice = choose(situation, launch.options.hybrid_state)
    refuse_uneven_drafts(situation, choice)
    log_once(logger, logging.INFO, f"Recurrent state of {architecture}: {choice}.")
    _warn_of_late_saves(situation)
    metrics.publish_state(
        launch.engine_args,
        launch.target,
        launch.config,
        choice.scheme,
        deployment,
        non_causal_draft=launch.case is not None
        and not all(layer.causal for layer in launch.case.spec.layers),
    )
    if choice.replays:
        refuse_on_cpu(situation.platform, launch.options.replay_kernels)
        write_marker(
            launch.target.hf_config,
            must_replay=launch.options.hybrid_state == "replay" or situation.needs_replay,
            replay_kernels=launch.options.replay_kernels,
        )
        architectures.use_architecture(launch.target, REPLAYING_TARGETS[architecture])


def _warn_of_unused_option(launch: Launch) -> None:
    try:
        refuse_without_use(
            launch.target.architecture,
            option=launch.options.adaptive_verification,
            key=bool(launch.config.enable_adaptive_verification),
        )
    except OptionsError as error:
        log_once(logger, logging.WARNING, f"{error}. It is ignored.")


def _warn_of_late_saves(situation: Situation) -> None:
    try:
        warn_of_late_saves(situation.kv_connector, runner=situation.runner)
    except HybridStateError as error:
        log_once(logger, logging.WARNING, f"{error}.")


def require_drafts(options: Options) -> None:
    """Refuse what is of no use in a run without drafts, which has nothing to replay or verify.

    Raises:
        HybridStateError: replay is asked for.
        OptionsError: adaptive verification is.
    """
    refuse_without_drafts(option=options.adaptive_verification)
    if options.hybrid_state == "replay":
        raise HybridStateError(
            field=OPTION,
            value="replay",
            allowed="'auto' or 'per_token' without a speculative config",
            remedy="leave the option out, or name a draft",
        )


def _situation(launch: Launch, deployment: Deployment) -> Situation:
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON

    engine_args, config = launch.engine_args, launch.config
    # vLLM sets the key itself for these methods, whose V2 runner drafts in parallel.
    by_method = method_drafts_in_parallel(config.method)
    return Situation(
        architecture=launch.target.architecture,
        k=config.num_speculative_tokens,
        runner=compat.model_runner(
            drafts_in_parallel=bool(config.parallel_drafting) and not by_method,
            method=config.method,
            other_vocabulary=bool(getattr(config, "use_heterogeneous_vocab", False)),
        ),
        platform="cuda" if current_platform.is_cuda() else current_platform.device_name,
        capability=_gpu_capability() if current_platform.is_cuda() else None,
        state_width=_state_dtype(launch).itemsize,
        kernels=launch.options.replay_kernels,
        not_chunked=_not_chunked(launch),
        prefix_caching=bool(engine_args.enable_prefix_caching),
        has_triton=HAS_TRITON,
        dtype=str(launch.target.dtype).removeprefix("torch."),
        pipeline_parallel_size=engine_args.pipeline_parallel_size,
        context_parallel_size=max(
            engine_args.decode_context_parallel_size, engine_args.prefill_context_parallel_size
        ),
        kv_connector=connector_of(engine_args),
        lora=bool(engine_args.enable_lora),
        packs_convolutions=current_platform.is_cpu() and _packs_convolutions(),
        microbatches=bool(engine_args.enable_dbo) or engine_args.ubatch_size > 1,
        prefill_exports=deployment.exports_states(launch.target_text.get("linear_key_head_dim", 0)),
        k_by_batch_size=launch.schedule,
        short_drafts_crash=compat.cpu_needs_all_drafts(),
        adaptive_verification=bool(config.enable_adaptive_verification),
        adaptive_verification_allowed=launch.options.adaptive_verification,
    )


def _packs_convolutions() -> bool:
    """Say whether vLLM packs the weights of short convolutions on this CPU, by what it asks itself."""
    import torch
    from vllm.model_executor.layers.mamba.ops.cpu.gdn_attention import is_arm_bf16

    return torch.cpu._is_avx512_bf16_supported() or is_arm_bf16()


def _gpu_capability() -> tuple[int, int] | None:
    """Return the first visible GPU's capability by NVML, as vLLM does, without a CUDA context."""
    from vllm.platforms import current_platform

    found = current_platform.get_device_capability()
    return None if found is None else (found.major, found.minor)


def _state_dtype(launch: Launch) -> torch.dtype:
    """Return the dtype that vLLM picks for recurrent states on a GPU."""
    from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE

    asked = launch.engine_args.mamba_ssm_cache_dtype
    if asked == "auto" and launch.target.architecture not in STATE_DTYPE_UNREAD:
        asked = launch.target_text.get("mamba_ssm_dtype") or "auto"
    return launch.target.dtype if asked == "auto" else STR_DTYPE_TO_TORCH_DTYPE[asked]


def _not_chunked(launch: Launch) -> str | None:
    """Say why the chunked kernels cannot run the target's recurrent layers, if so."""
    text = launch.target_text
    # Without such layers there are no widths, and nothing hinders.
    widths = text.get("linear_key_head_dim", 0), text.get("linear_value_head_dim", 0)
    rows = 1 + launch.config.num_speculative_tokens
    return hindrance(*widths, rows, launch.target.dtype, _state_dtype(launch))
