# SPDX-License-Identifier: Apache-2.0
"""Foresees what a start would make of the options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from vllm_eagle_ext.checkpoint import Case
from vllm_eagle_ext.memory.adaptive_option import refuse_without_use
from vllm_eagle_ext.memory.connectors import read_connector, warn_of_late_saves
from vllm_eagle_ext.memory.state_scheme import REPLAYING_TARGETS, refuse_without_states
from vllm_eagle_ext.preflight.auto_rules import (
    AutoEngine,
    chosen_menu,
    has_fixed_blocks,
    refuse_engine,
    refuse_few_requests,
    refuse_menu,
    refuse_shorter_blocks,
)
from vllm_eagle_ext.preflight.kv_groups import has_several_groups
from vllm_eagle_ext.preflight.offline.wishes import EngineWishes, Runner
from vllm_eagle_ext.preflight.sleep_rules import SleepEngine, has_zero, refuse_sleep, warn_of_no_zero


def checks_of_options(
    architecture: str,
    text: Mapping[str, Any],
    case: Case | None,
    wishes: EngineWishes,
    *,
    runner: Runner,
    on_cpu: bool,
    prefix_caching: bool,
) -> dict[str, Callable[[], object]]:
    """List what a start asks of the options, name by name; a check raises an EagleExtError.

    Args:
        text: config of the target's language model.
    """
    asked = wishes.options.hybrid_state
    checks: dict[str, Callable[[], object]] = {
        "replay_needs_states": partial(refuse_without_states, architecture, asked),
        "draft_lengths_fit": partial(refuse_menu, wishes.options, wishes.k),
        "adaptive_option_is_used": partial(
            refuse_without_use,
            architecture,
            option=wishes.options.adaptive_verification,
            key=bool(wishes.speculative.get("enable_adaptive_verification")),
        ),
    }
    if architecture in REPLAYING_TARGETS:
        checks["states_are_saved_in_time"] = partial(
            warn_of_late_saves, named_connector(wishes.engine), runner=runner
        )
    has_draft = case is not None or wishes.passed_through
    if has_draft:
        checks |= _checks_of_sleep(text, case, wishes, runner, on_cpu, prefix_caching)
    if wishes.chooses_k and has_draft:
        checks["engine_chooses_lengths"] = partial(
            _refuse_auto, case, wishes, runner=runner, on_cpu=on_cpu
        )
    if case is not None and has_fixed_blocks(
        case.spec.method, in_parallel=case.spec.record.asks_for_parallel_drafting, runner=runner
    ):
        checks["shorter_drafts_stay_apart"] = partial(
            refuse_shorter_blocks, wishes.options, wishes.k, wishes.schedule
        )
    return checks


def _checks_of_sleep(
    text: Mapping[str, Any],
    case: Case | None,
    wishes: EngineWishes,
    runner: Runner,
    on_cpu: bool,
    prefix_caching: bool,
) -> dict[str, Callable[[], object]]:
    engine = SleepEngine(
        has_draft=case is not None and not case.spec.served_by.is_vllms,
        caches_without_attention=case is not None and case.spec.caches_without_attention,
        runner=runner,
        on_cpu=on_cpu,
        prefix_caching=prefix_caching,
        mixed_caches=case is not None
        and has_several_groups(
            text, case.spec, manager_off=bool(wishes.engine.get("disable_hybrid_kv_cache_manager"))
        ),
        kv_connector=named_connector(wishes.engine),
    )
    asked = wishes.options.draft_off
    return {
        "drafter_may_sleep": partial(refuse_sleep, asked, engine),
        "draft_off_is_used": partial(warn_of_no_zero, asked, zero=has_zero(wishes.schedule)),
    }


def named_connector(engine: Mapping[str, Any]) -> str | None:
    """Name what moves the cache's blocks, if anything does."""
    keys = ("kv_transfer_config", "kv_offloading_size", "kv_offloading_backend")
    return read_connector(*map(engine.get, keys))


def _refuse_auto(case: Case | None, wishes: EngineWishes, *, runner: Runner, on_cpu: bool) -> None:
    """Refuse what a start with `draft_length: "auto"` does.

    Raises:
        OptionsError: no draft that this package serves.
        SpeculativeConfigError: something of the engine's that does not go with it.
    """
    engine = wishes.engine
    refuse_engine(
        AutoEngine(
            has_draft=case is not None and not case.spec.served_by.is_vllms,
            method=case.spec.method if case else None,
            runner=runner,
            on_cpu=on_cpu,
            keys=wishes.speculative,
            scheduler_cls=engine.get("scheduler_cls"),
            data_parallel_size=wishes.ranks("data_parallel_size"),
            pipeline_parallel_size=wishes.ranks("pipeline_parallel_size"),
        )
    )
    menu = chosen_menu(wishes.options.draft_lengths, wishes.k)
    refuse_few_requests(menu, runner, engine.get("max_num_seqs"))
