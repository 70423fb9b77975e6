# SPDX-License-Identifier: Apache-2.0
"""Decides at a start whether the draft sleeps while nothing is drafted, and says so."""

from __future__ import annotations

import logging

from vllm_eagle_ext.draft_length.menu import complete_menu
from vllm_eagle_ext.errors import OptionsError
from vllm_eagle_ext.log import get_logger, log_once
from vllm_eagle_ext.preflight.engine_deployment import connector_of
from vllm_eagle_ext.preflight.kv_groups import has_several_groups
from vllm_eagle_ext.preflight.launch import Launch
from vllm_eagle_ext.preflight.sleep_rules import (
    SleepEngine,
    has_zero,
    refuse_sleep,
    warn_of_no_zero,
    why_awake,
)

logger = get_logger(__name__)


def choose_sleep(launch: Launch) -> bool:
    """Return whether the draft may sleep, once vLLM has built its config.

    Raises:
        SpeculativeConfigError: "sleep" is asked for, and the draft cannot.
    """
    asked, engine, zero = launch.options.draft_off, _engine(launch), _drafts_nothing(launch)
    refuse_sleep(asked, engine)
    try:
        warn_of_no_zero(asked, zero=zero)
    except OptionsError as error:
        log_once(logger, logging.WARNING, f"{error}. It is ignored.")
    if not zero or launch.case is None:
        return False
    reason = "as draft_off asks" if asked == "keep" else why_awake(engine)
    log_once(logger, logging.INFO, _announce(reason))
    return reason is None


def _announce(reason: str | None) -> str:
    if reason is None:
        return "Steps that draft nothing: the draft sleeps; its cache is filled before the next drafts."
    return f"Steps that draft nothing: the draft runs over their tokens all the same, {reason}."


def _engine(launch: Launch) -> SleepEngine:
    from vllm.platforms import current_platform

    engine_args, case = launch.engine_args, launch.case
    return SleepEngine(
        has_draft=case is not None and not case.spec.served_by.is_vllms,
        caches_without_attention=case is not None and case.spec.caches_without_attention,
        runner=case.setting.runner if case else None,
        on_cpu=bool(current_platform.is_cpu()),
        prefix_caching=bool(engine_args.enable_prefix_caching),
        mixed_caches=case is not None
        and has_several_groups(
            launch.target_text, case.spec, manager_off=bool(engine_args.disable_hybrid_kv_cache_manager)
        ),
        kv_connector=connector_of(engine_args),
    )


def _drafts_nothing(launch: Launch) -> bool:
    """Whether K is ever 0; with data parallelism vLLM turns its schedule off."""
    config = launch.config
    if config is None:
        return False
    if launch.options.draft_length == "auto":
        return 0 in complete_menu(launch.options.draft_lengths, config.num_speculative_tokens)
    if launch.engine_args.data_parallel_size > 1:
        return False
    return has_zero(config.num_speculative_tokens_per_batch_size)
