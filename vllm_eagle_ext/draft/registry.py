# SPDX-License-Identifier: Apache-2.0
"""The families by name, and what is looked up across all of them.

Functions, not tables: nothing here is read at import. Records are reached by name, as they are made of
this layer's parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pkgutil import resolve_name
from typing import Any

from vllm_eagle_ext.draft.draft_config import published_architecture
from vllm_eagle_ext.draft.spec import Evidence, Family, KeyEffect
from vllm_eagle_ext.errors import UnsupportedTargetError
from vllm_eagle_ext.families.drafter_classes import FOLDERS, Drafter, drafters

# Plain models, and older EAGLE-3 heads: the name by itself does not make a draft of a model.
PLAIN_MODELS = ("LlamaForCausalLM", "Qwen3ForCausalLM")


@cache
def families() -> dict[str, Family]:
    """Return the families by name, in the order in which they are tried on a draft."""
    records = [resolve_name(f"vllm_eagle_ext.families.{folder}.family:FAMILIES") for folder in FOLDERS]
    return {family.name: family for group in records for family in group}


def published() -> dict[str, Drafter]:
    """Return published architecture -> the drafter class that serves it.

    Only these drafts are touched: vLLM picks some variants by their exact name.
    """
    return {name: drafter for drafter in drafters() for name in drafter.published}


def speculators() -> dict[tuple[str, str], Drafter]:
    """Return (speculators_model_type, model_type of transformer_layer_config) -> the drafter class."""
    return {pair: drafter for drafter in drafters() for pair in drafter.speculators}


def drafter_of(config: Mapping[str, Any], layer_model_type: object) -> Drafter | None:
    """Return the drafter class that serves a draft, or None where none does.

    A speculators draft is named by its type, others by their architecture.
    """
    type_, architecture = config.get("speculators_model_type"), published_architecture(config)
    if isinstance(type_, str):
        layer = layer_model_type if isinstance(layer_model_type, str) else "llama"
        drafter = speculators().get((type_, layer))
        return None if drafter and architecture in drafter.excluded_architectures else drafter
    typed = (architecture, config.get("model_type"))
    return next((drafter for drafter in drafters() if typed in drafter.published_with_type), None) or (
        published().get(architecture)
    )


def refuse_a_draft(config: Mapping[str, Any], name: str) -> None:
    """Refuse a config.json of a draft in the target's place.

    Raises:
        UnsupportedTargetError: it is one of a draft, by its architecture or type.
    """
    names = config.get("architectures")
    first = names[0] if isinstance(names, list) and names else None  # which vLLM serves
    if drafter_of(config, None) is None or first in PLAIN_MODELS:
        return
    raise UnsupportedTargetError(
        field="--target", value=name, allowed=f"a target model; this config.json is a draft's, {names}",
        remedy="swap DRAFT and --target if they changed places, as in COMMAND DRAFT --target TARGET",
    )  # fmt: skip


def choose_family(drafter: Drafter, evidence: Evidence) -> Family:
    """Return the family of a draft that this drafter class serves."""
    return next(
        family
        for family in families().values()
        if drafter in family.drafters and family.matches(evidence)
    )


def methods() -> tuple[str, ...]:
    """Return the values of `speculative_config.method` whose drafts are looked at."""
    return _distinct(drafter.method for drafter in drafters())


def method_may_lie_in_the_target(method: str | None) -> bool:
    """Tell whether the method's draft needs no name, because it may be part of the target's files."""
    return any(drafter.method == method and drafter.may_lie_in_the_target for drafter in drafters())


def method_fills_a_block(method: str | None) -> bool:
    """Say whether vLLM drafts all tokens in one pass for the method without `parallel_drafting`."""
    return any(family.method == method and family.fills_a_block for family in families().values())


def config_blocks() -> tuple[str, ...]:
    """Return the blocks of config.json in which published drafts nest keys of their own."""
    return _distinct(place.partition(".")[0] for place in id_places())


def id_places() -> tuple[str, ...]:
    """Return the nested keys that name aux layers."""
    return _distinct(place for family in families().values() for place in family.id_convention.places)


def own_keys() -> dict[str, KeyEffect]:
    """Return the keys of config.json that some family computes with, and others do not."""
    return {key: effect for family in families().values() for key, effect in family.own_keys.items()}


def own_model_types() -> dict[str, str]:
    """Return the model types without a config class in vLLM -> the function that registers ours."""
    return {type_: hook for family in families().values() for type_, hook in family.model_types.items()}


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
