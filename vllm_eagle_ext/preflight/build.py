# SPDX-License-Identifier: Apache-2.0
"""Takes a start through the preflight: read what is asked, inspect the draft, let vLLM build its
SpeculativeConfig, and apply to it what was decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vllm_eagle_ext import compat, failed_start, metrics
from vllm_eagle_ext.checkpoint.families.registry import methods
from vllm_eagle_ext.errors import UnsupportedVllmError
from vllm_eagle_ext.log import get_logger
from vllm_eagle_ext.memory.state_scheme import refuse_without_states
from vllm_eagle_ext.options import Options, parse_options
from vllm_eagle_ext.preflight.apply import apply_spec
from vllm_eagle_ext.preflight.apply_prefix_hits import keep_last_block
from vllm_eagle_ext.preflight.apply_scheme import apply_hybrid_state, require_drafts
from vllm_eagle_ext.preflight.apply_window import share_the_targets_group
from vllm_eagle_ext.preflight.draft_checks import inspect_launch, inspect_requested
from vllm_eagle_ext.preflight.draft_request import read_request
from vllm_eagle_ext.preflight.engine_args import take_back
from vllm_eagle_ext.preflight.fixed_blocks import check_schedule
from vllm_eagle_ext.preflight.launch import Launch, read_launch
from vllm_eagle_ext.preflight.messages import log_inspection
from vllm_eagle_ext.preflight.one_token_prompts import keep_prompts
from vllm_eagle_ext.preflight.untested import refuse_gaps

logger = get_logger(__name__)


def build_speculative_config(
    engine_args: Any, target_model_config: Any, build: Callable[[], Any]
) -> Any:
    """Check the draft, let vLLM build its SpeculativeConfig, then write what was decided into it.

    Args:
        engine_args: vLLM's EngineArgs.
        target_model_config: ModelConfig of the target.
        build: vLLM's own builder, without arguments.

    Returns:
        What `build` returned; only drafts of a registered family are touched.

    Raises:
        EagleExtError: options, request or checkpoint that cannot be served rightly.
    """
    take_back(engine_args)
    launch = read_launch(engine_args, target_model_config)
    metrics.withdraw()
    if not launch.options.enabled:
        return build()
    refuse_without_states(target_model_config.architecture, launch.options.hybrid_state)
    if launch.request is not None:
        failed_start.watch()
    launch = inspect_launch(launch)  # before vLLM builds, whose own errors would come first
    launch = _build(launch, build)
    _apply(launch)
    return launch.config


def _build(launch: Launch, build: Callable[[], Any]) -> Launch:
    launch = replace(launch, config=build())
    request, config = launch.request, launch.config
    if config is None or request is None or request.method is not None:
        return launch
    if not isinstance(config.model, str):
        return launch
    # vLLM took the method from words in the draft's path.
    return inspect_launch(replace(launch, request=replace(request, method=config.method)))


def _apply(launch: Launch) -> None:
    is_inspected = launch.config is not None and launch.inspection is not None
    if is_inspected and launch.config.method in methods():
        keep_last_block(launch)
        share_the_targets_group(launch)
        _apply_draft(launch)
    if launch.config is None:
        require_drafts(launch.options)
        return
    check_schedule(launch)
    keep_prompts(launch)
    apply_hybrid_state(launch)
    if is_inspected and launch.case is not None:
        logger.info(
            "Drafting is on: %s tokens per step with %r. See acceptance in the log (SpecDecoding "
            "metrics) and in /metrics (vllm:spec_decode_num_accepted_tokens_total).",
            launch.config.num_speculative_tokens, launch.config.model,
        )  # fmt: skip


def _apply_draft(launch: Launch) -> None:
    config, inspection = launch.config, launch.inspection
    if inspection is None or inspection.case is None:
        kind = getattr(config.draft_model_config, "architectures", None)
        logger.warning(
            "This package does not handle the draft %r (%s): plain vLLM loads it.", config.model, kind
        )
        return
    apply_spec(config, inspection.case, strict=launch.options.strict)
    log_inspection(inspection, launch.target.get_total_num_hidden_layers())
    spec, k = inspection.case.spec, config.num_speculative_tokens
    metrics.publish_draft(launch.engine_args, launch.target, spec, k)


def build_on_untested_vllm(engine_args: Any, target_model_config: Any, build: Callable[[], Any]) -> Any:
    """Keep stock behaviour outside the tested range, but refuse a draft that needs this package.

    Whatever else goes wrong here is logged, and vLLM decides: nothing is known of this release.

    Raises:
        OptionsError: an unknown option or value.
        UnsupportedVllmError: a draft that stock vLLM would misload.
    """
    take_back(engine_args)
    options = parse_options(getattr(engine_args, "additional_config", None))
    if options.untested_vllm and options.enabled:
        return build_speculative_config(engine_args, target_model_config, build)
    if options.enabled:
        try:
            _refuse_if_needed(engine_args, target_model_config)
        except UnsupportedVllmError:
            raise
        except Exception as error:  # noqa: BLE001
            logger.warning("The draft could not be checked on this vLLM: %s", error)
        if options.hybrid_state == "replay":
            logger.warning(
                "hybrid_state is 'replay', which is not used on this untested vLLM: it keeps one state "
                "block per draft token."
            )
    return build()


def _refuse_if_needed(engine_args: Any, target_model_config: Any) -> None:
    request = read_request(engine_args)
    if request is None:
        return
    launch = Launch(
        engine_args=engine_args, target=target_model_config, options=Options(), request=request
    )
    inspection = inspect_requested(launch, request)
    if inspection and inspection.case:
        refuse_gaps(inspection.case, compat.vllm_version())
