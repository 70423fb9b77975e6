# SPDX-License-Identifier: Apache-2.0
"""Which engines run at the same time, and what each is started with and serves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_eagle_ext.measure.bench.results import (
    ADAPTIVE_KEY,
    PLAIN,
    SCHEDULE_KEY,
    Config,
    ServedLoad,
    Settings,
    Variant,
)
from vllm_eagle_ext.measure.engine.held_length import SCHEDULER, schedule_of
from vllm_eagle_ext.options import KEY

LEAST_PROMPTS = 4  # of a measurement of steps: fewer requests decode several waves after each other


def engine_arguments(
    settings: Settings, variant: Variant, engine: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Give the keywords of LLM().

    Args:
        engine: in place of the settings', with the share of the memory.
    """
    found: dict[str, Any] = {"seed": settings.seed, **(engine or settings.engine)}
    found["model"] = settings.target
    if settings.dummy:
        found |= {"load_format": "dummy", "skip_tokenizer_init": True}
    config = config_of(settings, variant)
    found |= {name: value for name, value in config.model_dump().items() if value is not None}
    if variant.kind == "held":
        found["scheduler_cls"] = SCHEDULER
    return found


def config_of(settings: Settings, variant: Variant) -> Config:
    """Give the two configs that a variant is served with."""
    if variant.draft is None:
        return Config()
    speculative = {**settings.served[variant.draft], "num_speculative_tokens": variant.k}
    if settings.dummy:
        # A draft with dummy weights shares the target's head: vLLM asks its tensors for one.
        speculative["draft_load_config"] = {"load_format": "auto"}
    if variant.kind == "held":
        speculative |= {"num_speculative_tokens": max(settings.ks)}
        speculative[SCHEDULE_KEY] = lists_of(schedule_of(settings.ks))
    elif variant.kind == "schedule":
        speculative[SCHEDULE_KEY] = lists_of(variant.schedule)
    elif variant.kind == "adaptive":
        speculative[ADAPTIVE_KEY] = True
    speculative |= _synthetic_keys(settings, variant.k)
    ours = variant.has_plugin and settings.eagle_ext
    return Config(
        speculative_config=speculative, additional_config={KEY: settings.eagle_ext} if ours else None
    )


def engine_of(settings: Settings, variant: Variant) -> Variant:
    """Return the variant that stands for an engine: one engine holds every K."""
    if variant.kind != "held":
        return variant
    return variant.model_copy(update={"k": max(settings.ks)})


def no_draft_or(variant: Variant) -> Variant:
    """Return the variant, or no draft in place of a schedule that never drafts."""
    return variant if any(k for _, _, k in variant.schedule) else PLAIN


def lists_of(schedule: Sequence[tuple[int, int, int]]) -> list[list[int]]:
    """Spell a schedule as vLLM reads it."""
    return [list(entry) for entry in schedule]


def _synthetic_keys(settings: Settings, k: int) -> dict[str, Any]:
    """Return the keys of speculative_config that set the acceptance.

    Of one length, a K takes what it can reach of it.
    """
    given = settings.synthetic_acceptance
    if given is None:
        return {}
    found: dict[str, Any] = {"rejection_sample_method": "synthetic"}
    if given[0] > 1:
        return found | {"synthetic_acceptance_length": min(given[0], k + 1)}
    return found | {"synthetic_acceptance_rates": given[:k]}


@dataclass(frozen=True, slots=True)
class EngineBatch:
    """Engines that run at the same time, each with the variants that it serves."""

    repeat: int
    engines: tuple[tuple[Variant, ...], ...]


def variants(settings: Settings) -> list[Variant]:
    """List the variants with stock next to ours, so that what is compared runs one after the other."""
    found = [PLAIN] if "none" in settings.kinds else []
    for draft in settings.drafts:
        for k in settings.ks:
            kinds = [kind for kind in settings.kinds if kind != "none"]
            found += [Variant(kind=kind, draft=draft, k=k) for kind in kinds]
    return found


def swept(settings: Settings) -> list[Variant]:
    """List what the sweep measures: no draft, and each K in one engine."""
    (draft,) = settings.drafts
    return [PLAIN, *(Variant(kind="held", draft=draft, k=k) for k in settings.ks)]


def batches(settings: Settings, served: Sequence[Variant]) -> list[EngineBatch]:
    """List the batches of engines, which are fresh for each repeat.

    Every second repeat goes in reverse: a machine that slows down does so for all alike.
    """
    engines: dict[Variant, tuple[Variant, ...]] = {}
    for variant in served:
        key = engine_of(settings, variant)
        engines[key] = (*engines.get(key, ()), variant)
    found = []
    for repeat in range(settings.repeats):
        order = list(engines.values())[:: -1 if repeat % 2 else 1]
        if settings.together:
            found.append(EngineBatch(repeat, tuple(order)))
        else:
            found += [EngineBatch(repeat, (one,)) for one in order]
    return found


def turns(batch: EngineBatch, number: int) -> Iterator[tuple[int, Variant]]:
    """Yield each variant with the place of its engine; the order changes from round to round."""
    found = [(place, variant) for place, own in enumerate(batch.engines) for variant in own]
    yield from found[:: -1 if number % 2 else 1]


def waves(requests: int) -> int:
    """Count the loads that one measurement of steps takes."""
    return math.ceil(LEAST_PROMPTS / requests)


def prompts_of(load: ServedLoad, number: int, prompts: Sequence[list[int]]) -> list[list[list[int]]]:
    """List the prompts of each wave of steps: others in each round, the same for all that take turns."""
    requests = load.concurrency
    first = number * waves(requests) * requests
    return [
        [prompts[(first + wave * requests + n) % len(prompts)] for n in range(requests)]
        for wave in range(waves(requests))
    ]


def most_steps(timed: int, requests: int) -> int:
    """Count the steps that the first request may go on for: others' prompts may be read meanwhile."""
    return timed + 4 + requests // 2
