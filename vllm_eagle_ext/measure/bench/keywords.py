# SPDX-License-Identifier: Apache-2.0
"""What the engine of each variant is started with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_eagle_ext.measure.bench.results import (
    ADAPTIVE_KEY,
    PLAIN,
    SCHEDULE_KEY,
    Config,
    Settings,
    Variant,
)
from vllm_eagle_ext.measure.engine.held_length import SCHEDULER, schedule_of
from vllm_eagle_ext.options import KEY


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
