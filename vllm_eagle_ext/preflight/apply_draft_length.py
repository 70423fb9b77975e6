# SPDX-License-Identifier: Apache-2.0
"""Hands an engine with `draft_length: "auto"` to the scheduler that chooses K, or refuses it."""

from __future__ import annotations

import logging
from typing import Any

from vllm_eagle_ext import metrics
from vllm_eagle_ext.draft_length.menu import schedule_of
from vllm_eagle_ext.log import get_logger, log_once
from vllm_eagle_ext.preflight.auto_rules import (
    AutoEngine,
    chosen_menu,
    has_fixed_blocks,
    no_draft,
    refuse_engine,
    refuse_few_requests,
    refuse_menu,
    refuse_shorter_blocks,
    speculative_keys,
)
from vllm_eagle_ext.preflight.launch import Launch

logger = get_logger(__name__)

# vLLM reads the name after it has built the SpeculativeConfig, and calls what it names.
SCHEDULER = "vllm_eagle_ext.draft_length.scheduler.build_scheduler"


def withdraw_scheduler(engine_args: Any) -> None:
    """Take back the scheduler that an earlier start with these arguments named: they may be used again
    without the option."""
    if engine_args.scheduler_cls == SCHEDULER:
        engine_args.scheduler_cls = None


def refuse_draft_length(launch: Launch) -> None:
    """Refuse `"auto"` where it cannot be served, before vLLM builds its config.

    Raises:
        OptionsError: a menu without `"auto"`, or `"auto"` without a draft that this package serves.
        SpeculativeConfigError: something else of the engine's that does not go with it.
    """
    request, engine_args = launch.request, launch.engine_args
    k = request.num_speculative_tokens if request else None
    refuse_menu(launch.options, k if isinstance(k, int) else None)
    if launch.options.draft_length != "auto":
        return
    refuse_engine(
        AutoEngine(
            has_draft=request is not None,
            method=request.method if request else None,
            runner=launch.case.setting.runner if launch.case else None,
            on_cpu=_on_cpu(),
            keys=speculative_keys(engine_args.speculative_config),
            scheduler_cls=engine_args.scheduler_cls,
            data_parallel_size=engine_args.data_parallel_size,
            pipeline_parallel_size=engine_args.pipeline_parallel_size,
        )
    )


def apply_draft_length(launch: Launch) -> None:
    """Name the scheduler, and give vLLM the menu as its schedule, once K is settled.

    Raises:
        OptionsError: a menu that does not fit K, or a draft that this package does not serve.
        SpeculativeConfigError: fewer requests than lengths on the V2 runner, or lengths that a parallel
            EAGLE-3 draft cannot have.
    """
    _refuse_shorter_blocks(launch)
    if launch.options.draft_length != "auto":
        return
    if launch.case is None or launch.case.spec.served_by.is_vllms:
        raise no_draft()
    config, engine_args = launch.config, launch.engine_args
    menu = chosen_menu(launch.options.draft_lengths, config.num_speculative_tokens)
    refuse_few_requests(menu, launch.case.setting.runner, engine_args.max_num_seqs)
    config.num_speculative_tokens_per_batch_size = schedule_of(menu)
    engine_args.scheduler_cls = SCHEDULER
    metrics.publish_draft_length(engine_args, launch.target, menu)
    log_once(
        logger, logging.INFO, f"Draft length: chosen for each step among {', '.join(map(str, menu))}."
    )


def _refuse_shorter_blocks(launch: Launch) -> None:
    config, case = launch.config, launch.case
    runner = case.setting.runner if case else None
    if case is None or not has_fixed_blocks(
        config.method, in_parallel=bool(config.parallel_drafting), runner=runner
    ):
        return
    is_followed = launch.engine_args.data_parallel_size == 1
    schedule = config.num_speculative_tokens_per_batch_size if is_followed else None
    given = schedule and [list(entry) for entry in schedule]
    refuse_shorter_blocks(launch.options, config.num_speculative_tokens, given)


def _on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())
