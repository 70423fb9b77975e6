# SPDX-License-Identifier: Apache-2.0
"""Hands an engine with `draft_length: "auto"` to the scheduler that chooses K, or refuses it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_eagle_ext import metrics
from vllm_eagle_ext.checkpoint.families.registry import methods
from vllm_eagle_ext.draft_length.menu import complete_menu, schedule_of
from vllm_eagle_ext.errors import EagleExtError, OptionsError, SpeculativeConfigError
from vllm_eagle_ext.log import get_logger, log_once
from vllm_eagle_ext.options import KEY, Options
from vllm_eagle_ext.preflight.launch import Launch

logger = get_logger(__name__)

# vLLM reads the name after it has built the SpeculativeConfig, and calls what it names.
SCHEDULER = "vllm_eagle_ext.draft_length.scheduler.build_scheduler"
_OPTION = f"additional_config.{KEY}.draft_length"
_MENU = f"additional_config.{KEY}.draft_lengths"
_FIXED = f'leave {_OPTION} out, or set it to "fixed"'
# Keys of vLLM's that choose how much is drafted or verified as well, and what they say.
_VLLMS_OWN = {
    "num_speculative_tokens_per_batch_size": "which says by batch size what is measured here",
    "enable_adaptive_verification": "which shortens drafts behind the scheduler's back, so that neither "
    "a length's step time nor its acceptance could be told",
}


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
    k = launch.request.num_speculative_tokens if launch.request else None
    refuse_menu(launch.options, k if isinstance(k, int) else None)
    if launch.options.draft_length == "auto":
        for problem in _problems(launch):
            raise problem


def refuse_menu(options: Options, k: int | None) -> None:
    """Refuse lengths that nobody reads, or that do not fit K, where it is known.

    Raises:
        OptionsError: as said.
    """
    if options.draft_length == "auto":
        if k is not None:
            _menu(options.draft_lengths, k)
    elif options.draft_lengths is not None:
        raise OptionsError(
            field=_MENU,
            value=options.draft_lengths,
            allowed='a list beside draft_length "auto" alone',
            remedy='set {"draft_length": "auto"}, or leave the list out',
        )


def apply_draft_length(launch: Launch) -> None:
    """Name the scheduler, and give vLLM the menu as its schedule, once K is settled.

    Raises:
        OptionsError: a menu that does not fit K, or a draft that this package does not serve.
        SpeculativeConfigError: fewer requests than lengths on the V2 runner.
    """
    if launch.options.draft_length != "auto":
        return
    if launch.case is None:  # the method was taken from the draft's name
        raise _no_draft(launch)
    config = launch.config
    menu = _menu(launch.options.draft_lengths, config.num_speculative_tokens)
    runner, engine_args = launch.case.setting.runner, launch.engine_args
    if runner == "v2" and (most := engine_args.max_num_seqs) is not None and most < len(menu):
        raise SpeculativeConfigError(
            field="--max-num-seqs",
            value=most,
            allowed=f"at least {len(menu)}, as many as there are lengths in the menu {list(menu)}: vLLM "
            "captures CUDA graphs for the lengths that it finds in a schedule by number of requests",
            remedy=f"allow more requests, or set {_MENU} to fewer lengths",
        )
    config.num_speculative_tokens_per_batch_size = schedule_of(menu)
    engine_args.scheduler_cls = SCHEDULER
    metrics.publish_draft_length(engine_args, launch.target, menu)
    log_once(
        logger, logging.INFO, f"Draft length: chosen for each step among {', '.join(map(str, menu))}."
    )


def _menu(asked: list[int] | None, k: int) -> tuple[int, ...]:
    try:
        return complete_menu(asked, k)
    except ValueError as error:
        raise OptionsError(
            field=_MENU,
            value=asked,
            allowed=str(error),
            remedy="correct the list, or leave it out for 0, 1, K/2 and K",
        ) from None


def _problems(launch: Launch) -> Iterator[EagleExtError]:
    """List what of the engine does not go with `"auto"`, first things first."""
    request, engine_args = launch.request, launch.engine_args
    if request is None or (request.method is not None and request.method not in methods()):
        yield _no_draft(launch)
    if request is not None and request.parallel_drafting and request.method == "eagle3":
        yield _problem(
            "speculative_config.parallel_drafting",
            True,
            "false: vLLM's V1 runner always makes K tokens of such a draft, and takes those of one "
            "request for another's where a step asks for fewer",
            _FIXED,
        )
    if engine_args.scheduler_cls is not None:
        yield _problem(
            "--scheduler-cls",
            engine_args.scheduler_cls,
            "vLLM's own scheduler, of which this package brings a subclass",
            f"leave the flag out, or {_FIXED}",
        )
    yield from _spread(launch)
    yield from _chosen_otherwise(engine_args)
    if launch.case is not None and launch.case.setting.runner == "v1" and not _on_cpu():
        yield _problem(
            "model runner",
            "V1",
            "V2 on a GPU: on V1 vLLM gives up full CUDA graphs once the length of drafts changes, which "
            "costs more than a shorter draft can save",
            f"VLLM_USE_V2_MODEL_RUNNER=1, or {_FIXED}",
        )


def _spread(launch: Launch) -> Iterator[EagleExtError]:
    engine_args = launch.engine_args
    if engine_args.data_parallel_size > 1:
        yield _problem(
            "data_parallel_size",
            engine_args.data_parallel_size,
            "1: each rank would choose a length of its own, and vLLM's ranks wait for each other",
            f"start one server per rank behind a load balancer, or {_FIXED}",
        )
    if engine_args.pipeline_parallel_size > 1:
        yield _problem(
            "pipeline_parallel_size",
            engine_args.pipeline_parallel_size,
            "1: the steps of several batches overlap in the stages, so that none can be timed",
            f"spread the target by --tensor-parallel-size, or {_FIXED}",
        )


def _chosen_otherwise(engine_args: Any) -> Iterator[EagleExtError]:
    given = engine_args.speculative_config
    keys = {str(k).replace("-", "_"): v for k, v in given.items()} if isinstance(given, Mapping) else {}
    for key, reason in _VLLMS_OWN.items():
        if keys.get(key):
            yield _problem(
                f"speculative_config.{key}",
                keys[key],
                f'nothing beside draft_length "auto", {reason}',
                f"leave the key out, or {_FIXED}",
            )


def _problem(field: str, value: object, allowed: str, remedy: str) -> SpeculativeConfigError:
    return SpeculativeConfigError(
        field=field, value=value, allowed=f'with draft_length "auto", {allowed}', remedy=remedy
    )


def _no_draft(launch: Launch) -> OptionsError:
    return OptionsError(
        field=_OPTION,
        value="auto",
        allowed=f'"fixed" without a draft of method {" or ".join(methods())} that this package serves',
        remedy=_FIXED,
    )


def _on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())
