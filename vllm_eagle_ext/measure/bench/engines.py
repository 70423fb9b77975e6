# SPDX-License-Identifier: Apache-2.0
"""Which engines run at the same time, and what each is started with and serves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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
Batch = tuple[int, list[list[Variant]]]  # repeat, and engines at a time with what each serves


def engine_arguments(
    settings: Settings, variant: Variant, engine: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Give the keywords of LLM().

    Args:
        engine: in place of the settings', with the share of the memory.
    """
    arguments: dict[str, Any] = {"seed": settings.seed, **(engine or settings.engine)}
    arguments["model"] = settings.target
    if settings.dummy:
        arguments |= {"load_format": "dummy", "skip_tokenizer_init": True}
    config = config_of(settings, variant)
    arguments |= {name: value for name, value in config.model_dump().items() if value is not None}
    if variant.kind == "held":
        arguments["scheduler_cls"] = SCHEDULER
    return arguments


def config_of(settings: Settings, variant: Variant) -> Config:
    """Give the two configs that a variant is served with; other plugins keep their keys."""
    additional = dict(settings.engine.get("additional_config") or {})
    if variant.has_plugin and settings.eagle_ext:
        additional[KEY] = settings.eagle_ext
    if variant.draft is None:
        return Config(additional_config=additional or None)
    speculative = {**settings.served[variant.draft], "num_speculative_tokens": variant.k}
    if settings.dummy:
        # A draft with dummy weights shares the target's head: vLLM asks its tensors for one.
        speculative["draft_load_config"] = {"load_format": "auto"}
    if variant.kind == "held":
        speculative |= {"num_speculative_tokens": max(settings.ks)}
        speculative[SCHEDULE_KEY] = schedule_of(settings.ks)
    elif variant.kind == "schedule":
        speculative[SCHEDULE_KEY] = [list(entry) for entry in variant.schedule]
    elif variant.kind == "adaptive":
        speculative[ADAPTIVE_KEY] = True
    if (given := settings.synthetic_acceptance) is not None:
        speculative["rejection_sample_method"] = "synthetic"
        if given[0] > 1:  # one length, of which a K takes what it can reach
            speculative["synthetic_acceptance_length"] = min(given[0], variant.k + 1)
        else:
            speculative["synthetic_acceptance_rates"] = given[: variant.k]
    return Config(speculative_config=speculative, additional_config=additional or None)


def engine_of(settings: Settings, variant: Variant) -> Variant:
    """Return the variant that stands for an engine: one engine holds every K."""
    if variant.kind != "held":
        return variant
    return variant.model_copy(update={"k": max(settings.ks)})


def variants(settings: Settings) -> list[Variant]:
    """List the variants with stock next to ours, so that what is compared runs one after the other."""
    kinds = [kind for kind in settings.kinds if kind != "none"]
    plain = [PLAIN] if "none" in settings.kinds else []
    return plain + [
        Variant(kind=kind, draft=draft, k=k)
        for draft in settings.drafts
        for k in settings.ks
        for kind in kinds
    ]


def swept(settings: Settings) -> list[Variant]:
    """List what the sweep measures: no draft, and each K in one engine."""
    (draft,) = settings.drafts
    return [PLAIN, *(Variant(kind="held", draft=draft, k=k) for k in settings.ks)]


def batches(settings: Settings, served: Sequence[Variant]) -> Iterator[Batch]:
    """Yield the batches of engines, which are fresh for each repeat.

    Every second repeat goes in reverse: a machine that slows down does so for all alike.
    """
    engines: dict[Variant, list[Variant]] = {}
    for variant in served:
        engines.setdefault(engine_of(settings, variant), []).append(variant)
    for repeat in range(settings.repeats):
        order = list(engines.values())[:: -1 if repeat % 2 else 1]
        for at_once in [order] if settings.together else [[own] for own in order]:
            yield repeat, at_once


def turns(engines: Sequence[Sequence[Variant]], number: int) -> list[tuple[int, Variant]]:
    """List each variant with the place of its engine; the order changes from round to round."""
    order = [(place, variant) for place, own in enumerate(engines) for variant in own]
    return order[:: -1 if number % 2 else 1]


def prompts_of(load: ServedLoad, number: int, prompts: Sequence[list[int]]) -> list[list[list[int]]]:
    """List the prompts of each wave of steps: others in each round, the same for all that take turns."""
    requests = load.concurrency
    waves = math.ceil(LEAST_PROMPTS / requests)
    first = number * waves * requests
    return [
        [prompts[(first + wave * requests + n) % len(prompts)] for n in range(requests)]
        for wave in range(waves)
    ]
