# SPDX-License-Identifier: Apache-2.0
"""Rules about keys of config.json that no drafter computes with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from vllm_eagle_ext.draft.config_keys import (
    RESCALES_LOGITS,
    UNCOMPUTED,
    rope_keys,
    stated_keys,
    unknown_keys,
)
from vllm_eagle_ext.draft.findings import AS_TRAINED, Problem, Severity, rule
from vllm_eagle_ext.draft.registry import own_keys
from vllm_eagle_ext.draft.rope_config import COMPUTED_KINDS, rope_block
from vllm_eagle_ext.draft.spec import Case

_CONFIG = "of the draft's config.json"


@rule(Severity.ERROR, can_run=True)
def keys_are_computed(case: Case) -> Iterable[Problem]:
    """Refuse keys that no drafter computes with: vLLM's drafters ignore what they do not know."""
    own = case.spec.family.own_keys
    of_others = {key: effect for key, effect in own_keys().items() if key not in own}
    uncomputed = {**UNCOMPUTED, **of_others}
    drafter = "no drafter computes" if own else "no EAGLE-3 drafter computes"
    for place, key, value in stated_keys(case.flat):
        known = uncomputed.get(key)
        if value == case.spec.family.identity_keys.get(key, known):
            continue
        in_place = key == "query_pre_attn_scalar" and value == case.spec.heads.dim
        if known is None or known.is_neutral(value) or in_place:
            continue
        neutral = [json.dumps(each) for each in known.neutral if each is not None]
        yield Problem(
            field=f"{place} {_CONFIG}",
            value=value,
            allowed=f"{' or '.join([*neutral, 'no such key'])}: it {known.effect}, which {drafter}",
            remedy="if the key came from the target's config and the trainer ignored it, remove it from "
            "config.json; otherwise use another draft",
        )


@rule(Severity.ERROR)
def rope_is_computed(case: Case) -> Iterable[Problem]:
    if case.spec.rope.kind not in COMPUTED_KINDS:
        yield Problem(
            field=f"rope_type {_CONFIG}",
            value=case.spec.rope.kind,
            allowed=", ".join(sorted(COMPUTED_KINDS)),
            remedy='edit config.json: "rope_type": "dynamic", which is the same for text'
            if case.spec.rope.kind == "xdrope"
            else "no drafter of vLLM computes this rope: use another draft",
        )
        return
    block = rope_block(case.flat)
    if nested := [key for key in ("full_attention", "sliding_attention") if key in block]:
        yield Problem(
            field=f"rope_parameters.{nested[0]} {_CONFIG}",
            value=block[nested[0]],
            allowed="no such key: all layers of a draft have one rope",
            remedy='state the draft\'s own in its place, with "rope_type" and "rope_theta"',
        )
    yield from _rotated_in_parts(case, block)


def _rotated_in_parts(case: Case, block: Mapping[str, Any]) -> Iterable[Problem]:
    """Find lists of rope that have not a number for each rotated pair of channels, as vLLM's have."""
    width = case.config.qk_rope_head_dim or int(case.spec.heads.dim * case.spec.rope.partial)
    sections = block.get("mrope_section")
    factors = ("short_factor", "long_factor") if case.spec.rope.kind in ("longrope", "su") else ()
    # One number serves for all.
    found = {key: len(block[key]) for key in factors if len(block.get(key, [1])) > 1}
    # A start drops the sections of drafts that make all tokens in one pass.
    at_once = case.spec.family.drafts_in_parallel or bool(case.request.parallel_drafting)
    if sections and case.spec.rope.kind in ("default", "mrope") and not at_once:
        found["mrope_section"] = sum(sections)
    for key, pairs in found.items():
        if pairs != width // 2:
            yield Problem(
                field=f"{key} of the rope {_CONFIG}",
                value=block[key],
                allowed=f"{width // 2} {'in sum' if key == 'mrope_section' else 'numbers'}, one for "
                "each pair of channels that is rotated",
                remedy=AS_TRAINED,
            )


@rule(Severity.NOTE)
def logits_keep_their_order(case: Case) -> Iterable[Problem]:
    """Note keys that rescale the logits.

    Sampled drafts are drawn from the logits as they are, which costs acceptance, not correctness.
    """
    for place, key, value in stated_keys(case.flat):
        computed = key in case.spec.family.scales_logits
        if key in RESCALES_LOGITS and not computed and value not in RESCALES_LOGITS[key]:
            yield Problem(
                field=f"{place} {_CONFIG}",
                value=value,
                message="It is not computed: any value above 0 changes the logits but not their order, "
                "so that the likeliest token stays the same",
            )


@rule(Severity.WARNING)
def mathematical_keys_are_known(case: Case) -> Iterable[Problem]:
    for place, value in (*unknown_keys(case.flat), *rope_keys(case.flat)):
        yield Problem(
            field=f"{place} {_CONFIG}",
            value=value,
            allowed="keys that a drafter reads; this one is not known, is not read, and by its name may "
            "change what the draft computes",
            remedy="if acceptance is low, ask the publisher what it means; otherwise nothing",
        )
