# SPDX-License-Identifier: Apache-2.0
"""The rules for `draft_length: "auto"`: a start applies them to an engine, `check` to a planned one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_eagle_ext.checkpoint.families.registry import methods
from vllm_eagle_ext.draft_length.menu import complete_menu
from vllm_eagle_ext.errors import EagleExtError, OptionsError, SpeculativeConfigError
from vllm_eagle_ext.options import KEY, Options

_OPTION = f"additional_config.{KEY}.draft_length"
_MENU = f"additional_config.{KEY}.draft_lengths"
_SCHEDULE = "num_speculative_tokens_per_batch_size"
_FIXED = f'leave {_OPTION} out, or set it to "fixed"'
# Keys of vLLM's that choose how much is drafted or verified as well, and what they say.
_VLLMS_OWN = {
    _SCHEDULE: "which says by batch size what is measured here",
    "enable_adaptive_verification": "which shortens drafts behind the scheduler's back, so that neither "
    "a length's step time nor its acceptance could be told",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoEngine:
    """Holds what of an engine may not go with `"auto"`."""

    has_draft: bool
    method: str | None  # None: taken from the draft's name later
    runner: str | None  # "v1" or "v2"; None: not known
    on_cpu: bool
    keys: Mapping[str, Any] = field(default_factory=dict)  # further ones of the speculative config
    scheduler_cls: Any = None
    data_parallel_size: int = 1
    pipeline_parallel_size: int = 1


def speculative_keys(given: object) -> dict[str, Any]:
    """Spell the keys of a speculative config as vLLM does, which takes dashes too."""
    if not isinstance(given, Mapping):
        return {}
    return {str(key).replace("-", "_"): value for key, value in given.items()}


def refuse_menu(options: Options, k: int | None) -> None:
    """Refuse lengths that nobody reads, or that do not fit K, where it is known.

    Raises:
        OptionsError: as said.
    """
    if options.draft_length == "auto":
        if k is not None:
            chosen_menu(options.draft_lengths, k)
    elif options.draft_lengths is not None:
        raise OptionsError(
            field=_MENU,
            value=options.draft_lengths,
            allowed='a list beside draft_length "auto" alone',
            remedy='set {"draft_length": "auto"}, or leave the list out',
        )


def chosen_menu(asked: list[int] | None, k: int) -> tuple[int, ...]:
    """Return the lengths to choose from.

    Raises:
        OptionsError: lengths that do not fit K.
    """
    try:
        return complete_menu(asked, k)
    except ValueError as error:
        raise OptionsError(
            field=_MENU,
            value=asked,
            allowed=str(error),
            remedy="correct the list, or leave it out for 0, 1, K/2 and K",
        ) from None


def refuse_engine(engine: AutoEngine) -> None:
    """Refuse an engine that cannot choose its lengths.

    Raises:
        OptionsError: no draft that this package serves.
        SpeculativeConfigError: something else of the engine's that does not go with it.
    """
    for problem in _problems(engine):
        raise problem


def refuse_few_requests(menu: tuple[int, ...], runner: str | None, max_num_seqs: int | None) -> None:
    """Refuse fewer requests than lengths on the V2 runner.

    Raises:
        SpeculativeConfigError: as said.
    """
    if runner == "v2" and max_num_seqs is not None and max_num_seqs < len(menu):
        raise SpeculativeConfigError(
            field="--max-num-seqs",
            value=max_num_seqs,
            allowed=f"at least {len(menu)}, as many as there are lengths in the menu {list(menu)}: vLLM "
            "captures CUDA graphs for the lengths that it finds in a schedule by number of requests",
            remedy=f"allow more requests, or set {_MENU} to fewer lengths",
        )


def has_fixed_blocks(method: str | None, *, in_parallel: bool, runner: str | None) -> bool:
    """Find out whether a draft always makes K tokens in one pass, and is read as if it made fewer.

    vLLM 0.32's V1 runner fills K masks per request for EAGLE-3 (`llm_base_proposer.py`), and views what
    they give as rows of the step's length: tokens of one request become another's. DFlash fills as many
    masks as the step asks for. With 0 nothing of the pass is read.
    """
    return method == "eagle3" and in_parallel and runner != "v2"


def refuse_shorter_blocks(options: Options, k: int, schedule: object) -> None:
    """Refuse lengths between 0 and K, for a draft that `has_fixed_blocks`.

    Args:
        schedule: vLLM's, as a user gives it; None where vLLM follows none.

    Raises:
        OptionsError: such a length in the menu of `"auto"`.
        SpeculativeConfigError: such a length in vLLM's schedule.
    """
    allowed = (
        f"0 and {k}, no length between: vLLM's V1 runner always makes {k} tokens of an EAGLE-3 draft "
        "with parallel_drafting, and takes those of one request for another's in a step of fewer"
    )
    if options.draft_length == "auto":
        menu = chosen_menu(options.draft_lengths, k)
        if _between(menu, k):
            raise OptionsError(
                field=_MENU,
                value=list(menu),
                allowed=allowed,
                remedy=f"set {_MENU} to [0, {k}], or {_FIXED}",
            )
    elif _between(_lengths_of(schedule), k):
        raise SpeculativeConfigError(
            field=f"speculative_config.{_SCHEDULE}",
            value=schedule,
            allowed=allowed,
            remedy=f"name 0 and {k} alone in the schedule, or leave the key out",
        )


def _between(lengths: Iterable[int], k: int) -> bool:
    return any(0 < length < k for length in lengths)


def _lengths_of(schedule: object) -> list[int]:
    """Read the lengths of a schedule, as far as it is one: vLLM has its own word on the rest."""
    entries = schedule if isinstance(schedule, Sequence) and not isinstance(schedule, str) else ()
    lasts = (entry[-1] for entry in entries if isinstance(entry, Sequence) and entry)
    return [last for last in lasts if type(last) is int]


def no_draft() -> OptionsError:
    """Say that there is no draft whose length could be chosen."""
    return OptionsError(
        field=_OPTION,
        value="auto",
        allowed='"fixed" without a draft of method eagle3 or dflash that a class of this package serves',
        remedy=_FIXED,
    )


def _problems(engine: AutoEngine) -> Iterator[EagleExtError]:
    """List what does not go with `"auto"`, first things first."""
    if not engine.has_draft or (engine.method is not None and engine.method not in methods()):
        yield no_draft()
    if engine.scheduler_cls is not None:
        yield _problem(
            "--scheduler-cls",
            engine.scheduler_cls,
            "vLLM's own scheduler, of which this package brings a subclass",
            f"leave the flag out, or {_FIXED}",
        )
    yield from _spread(engine)
    yield from _chosen_otherwise(engine.keys)
    if engine.runner == "v1" and not engine.on_cpu:
        yield _problem(
            "model runner",
            "V1",
            "V2 on a GPU: on V1 vLLM gives up full CUDA graphs once the length of drafts changes, which "
            "costs more than a shorter draft can save",
            f"VLLM_USE_V2_MODEL_RUNNER=1, or {_FIXED}",
        )


def _spread(engine: AutoEngine) -> Iterator[EagleExtError]:
    if engine.data_parallel_size > 1:
        yield _problem(
            "data_parallel_size",
            engine.data_parallel_size,
            "1: each rank would choose a length of its own, and vLLM's ranks wait for each other",
            f"start one server per rank behind a load balancer, or {_FIXED}",
        )
    if engine.pipeline_parallel_size > 1:
        yield _problem(
            "pipeline_parallel_size",
            engine.pipeline_parallel_size,
            "1: the steps of several batches overlap in the stages, so that none can be timed",
            f"spread the target by --tensor-parallel-size, or {_FIXED}",
        )


def _chosen_otherwise(keys: Mapping[str, Any]) -> Iterator[EagleExtError]:
    for key, reason in _VLLMS_OWN.items():
        if keys.get(key):
            yield _problem(
                f"speculative_config.{key}",
                keys[key],
                f'nothing beside draft_length "auto", {reason}',
                f"leave the key out, or {_FIXED}",
            )


def _problem(name: str, value: object, allowed: str, remedy: str) -> SpeculativeConfigError:
    return SpeculativeConfigError(
        field=name, value=value, allowed=f'with draft_length "auto", {allowed}', remedy=remedy
    )
