# SPDX-License-Identifier: Apache-2.0
"""Every rule that a draft must keep, a function each, in the order of the modules here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from vllm_eagle_ext.draft.findings import Rule, rules_in
from vllm_eagle_ext.draft.registry import families
from vllm_eagle_ext.draft.rules import (
    blocks,
    early,
    gates,
    keys,
    layers,
    norms,
    pairing,
    proposal_heads,
    quantised,
    request,
    tensors,
    vocabulary,
)
from vllm_eagle_ext.draft.spec import Family

EARLY_RULES = rules_in(early)
# Draft and target come first: with another target, most of the rest fails as a consequence.
RULES = rules_in(
    pairing, request, layers, norms, tensors, gates, quantised, vocabulary, blocks, proposal_heads,
    keys,
)  # fmt: skip
# Told by a family's record, so that a new family has the rules of its kinds.
KINDS: Mapping[str, Callable[[Family], bool]] = {
    "eagle3": lambda family: family.method == "eagle3",
    "autoregressive": lambda family: not family.drafts_in_parallel,
    "latent attention": lambda family: not family.drafters[0].backbone.has_kv_heads,
    "fused q, k and v": lambda family: (
        family.method == "eagle3" and family.drafters[0].backbone.has_kv_heads
    ),
    "parallel": lambda family: family.drafts_in_parallel,
    "parallel_drafting": lambda family: family.asks_for_parallel_drafting,
    "block": lambda family: family.fills_a_block,
    "second head": lambda family: family.drafters[0].uses_vllm_class,
    "dflash": lambda family: family.method == "dflash",
    "dflash2": lambda family: family.method == "dflash" and family.drafters[0].uses_vllm_class,
    "dspark": lambda family: family.method == "dspark",
}


@cache
def rules_for(family: Family) -> tuple[Rule, ...]:
    """Return the rules for all and for the family's kinds, in the order above, then the family's own."""
    return (*[rule for rule in RULES if rule.of is None or KINDS[rule.of](family)], *family.rules)


def every_rule() -> tuple[Rule, ...]:
    """Return all rules of drafts: the early ones, those by kinds, and the families' own."""
    own = (rule for family in families().values() for rule in family.rules)
    return tuple(dict.fromkeys((*EARLY_RULES, *RULES, *own)))
