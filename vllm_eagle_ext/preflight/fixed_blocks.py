# SPDX-License-Identifier: Apache-2.0
"""Refuses a schedule of K for drafts that always make all K tokens: of a start and of `check`."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.preflight.launch import Launch

_SCHEDULE = "num_speculative_tokens_per_batch_size"


def check_schedule(launch: Launch) -> None:
    """Hold the schedule of a start against its draft, once K is settled.

    Raises:
        SpeculativeConfigError: lengths that a parallel EAGLE-3 draft cannot have.
    """
    config, case = launch.config, launch.case
    runner = case.setting.runner if case else None
    if case is None or not has_fixed_blocks(
        config.method, in_parallel=bool(config.parallel_drafting), runner=runner
    ):
        return
    refuse_shorter_blocks(config.num_speculative_tokens, launch.schedule)


def has_fixed_blocks(method: str | None, *, in_parallel: bool, runner: str | None) -> bool:
    """Find out whether a draft always makes K tokens in one pass, and is read as if it made fewer.

    vLLM 0.32's V1 runner fills K masks per request for EAGLE-3 (`llm_base_proposer.py`), and views what
    they give as rows of the step's length: tokens of one request become another's. DFlash fills as many
    masks as the step asks for. With 0 nothing of the pass is read.
    """
    return method == "eagle3" and in_parallel and runner != "v2"


def refuse_shorter_blocks(k: int, schedule: object) -> None:
    """Refuse lengths between 0 and K, for a draft that `has_fixed_blocks`.

    Args:
        schedule: vLLM's, as a user gives it; None where vLLM follows none.

    Raises:
        SpeculativeConfigError: such a length in the schedule.
    """
    if any(0 < length < k for length in _lengths_of(schedule)):
        raise SpeculativeConfigError(
            field=f"speculative_config.{_SCHEDULE}",
            value=schedule,
            allowed=f"0 and {k}, no length between: vLLM's V1 runner always makes {k} tokens of an "
            "EAGLE-3 draft with parallel_drafting, and takes those of one request for another's in a "
            "step of fewer",
            remedy=f"name only 0 and {k} in the schedule, or leave the key out",
        )


def _lengths_of(schedule: object) -> list[int]:
    """Read the lengths of a schedule, as far as it is one: vLLM has its own word on the rest."""
    entries = schedule if isinstance(schedule, Sequence) and not isinstance(schedule, str) else ()
    lasts = (entry[-1] for entry in entries if isinstance(entry, Sequence) and entry)
    return [last for last in lasts if type(last) is int]
