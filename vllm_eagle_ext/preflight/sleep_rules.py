# SPDX-License-Identifier: Apache-2.0
"""The rules for `draft_off`, what a draft does while nothing is drafted: of a start and of `check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from vllm_eagle_ext.errors import OptionsError, SpeculativeConfigError
from vllm_eagle_ext.options import KEY

_OPTION = f"additional_config.{KEY}.draft_off"
_LEAVE = f"leave {_OPTION} out for a draft that sleeps where it can"


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepEngine:
    """Holds what of an engine decides whether its draft may sleep."""

    has_draft: bool
    caches_without_attention: bool  # the draft, which this package serves
    runner: str | None  # "v1" or "v2"; None: not known
    on_cpu: bool
    prefix_caching: bool
    mixed_caches: bool = False  # several KV-cache groups, whose layers take turns in one memory
    kv_connector: str | None = None


def has_zero(schedule: object) -> bool:
    """Find out whether a schedule of K, as vLLM takes it, ever turns drafting off."""
    if not isinstance(schedule, Iterable) or isinstance(schedule, str):
        return False
    return any(isinstance(step, Sequence) and len(step) == 3 and step[2] == 0 for step in schedule)


def refuse_sleep(asked: str | None, engine: SleepEngine) -> None:
    """Refuse "sleep" where a draft cannot.

    Raises:
        SpeculativeConfigError: as said, with the first reason.
    """
    reason = why_awake(engine)
    if asked == "sleep" and reason is not None:
        raise SpeculativeConfigError(
            field=_OPTION, value=asked, allowed=f'"keep" {reason}', remedy=_LEAVE
        )


def warn_of_no_zero(asked: str | None, *, zero: bool) -> None:
    """Refuse the option where no step drafts nothing; an engine can start with it, and a start warns.

    Raises:
        OptionsError: the option is given, and K is never 0.
    """
    if asked is not None and not zero:
        raise OptionsError(
            field=_OPTION,
            value=asked,
            allowed="a value where K may be 0, by draft_lengths or by vLLM's "
            "num_speculative_tokens_per_batch_size; it is not used here",
            remedy="leave the option out, or put 0 among the lengths",
        )


def why_awake(engine: SleepEngine) -> str | None:
    """Say why a draft cannot sleep; None: it can."""
    return next(_hindrances(engine), None)


def _hindrances(engine: SleepEngine) -> Iterator[str]:
    if not engine.has_draft:
        yield "without a draft that this package serves"
    elif not engine.caches_without_attention:
        yield (
            "beside a draft whose keys and values take a whole pass; those of DFlash drafts, and of "
            "EAGLE-3 drafts of one layer without latent attention that read aux layers, come from the "
            "target's hidden states and the texts alone"
        )
    if engine.runner == "v2":
        yield "on the V2 runner, which does with K = 0 what vLLM has for it"
    elif not engine.on_cpu:
        yield "on a GPU's V1 runner, where it was never run"
    if engine.prefix_caching and engine.mixed_caches:
        yield (
            "with prefix caching beside layers of several kinds (full, windowed), whose caches take "
            "turns in one memory: a row that is written afterwards may go into another layer's"
        )
    if engine.kv_connector is not None:
        yield (
            f"with {engine.kv_connector}, which may move a block of the draft's cache before it is "
            "filled"
        )
