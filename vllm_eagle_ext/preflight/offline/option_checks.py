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
from vllm_eagle_ext.preflight.fixed_blocks import has_fixed_blocks, refuse_shorter_blocks
from vllm_eagle_ext.preflight.offline.wishes import EngineWishes, Runner
from vllm_eagle_ext.preflight.one_token_prompts import refuse_foreign_scheduler


def checks_of_options(
    architecture: str, case: Case | None, wishes: EngineWishes, *, runner: Runner
) -> dict[str, Callable[[], object]]:
    """List what a start asks of the options, name by name; a check raises an EagleExtError."""
    asked = wishes.options.hybrid_state
    checks: dict[str, Callable[[], object]] = {
        "replay_needs_states": partial(refuse_without_states, architecture, asked),
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
        if wishes.schedule is None:
            checks["one_token_prompts_stay_right"] = partial(
                refuse_foreign_scheduler, wishes.engine.get("scheduler_cls")
            )
    if case is not None and has_fixed_blocks(
        case.spec.method, in_parallel=case.spec.record.asks_for_parallel_drafting, runner=runner
    ):
        checks["shorter_drafts_stay_apart"] = partial(refuse_shorter_blocks, wishes.k, wishes.schedule)
    return checks


def named_connector(engine: Mapping[str, Any]) -> str | None:
    """Name what moves the cache's blocks, if anything does."""
    keys = ("kv_transfer_config", "kv_offloading_size", "kv_offloading_backend")
    return read_connector(*map(engine.get, keys))
