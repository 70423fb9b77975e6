# SPDX-License-Identifier: Apache-2.0
"""Every rule that a draft must keep, one function each."""

from __future__ import annotations

from functools import cache

from vllm_eagle_ext.checkpoint.findings import Rule
from vllm_eagle_ext.checkpoint.rules import (
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
    weights,
)
from vllm_eagle_ext.checkpoint.spec import Family

EARLY_RULES = early.RULES
# Draft and target come first: with another target, most of the rest fails as a consequence.
RULES = (
    *pairing.RULES,
    *request.RULES,
    *layers.WINDOWS,
    *norms.RULES,
    *layers.AUX_LAYERS,
    *tensors.RULES,
    *gates.RULES,
    *quantised.RULES,
    *vocabulary.RULES,
    *blocks.RULES,
    *proposal_heads.RULES,
    *weights.FOR_VLLMS_LOADER,
    *keys.RULES,
    *weights.VALUES,
)


@cache
def rules_for(family: Family) -> tuple[Rule, ...]:
    """Return the rules for all and the family's, in the order above, then those that only it lists."""
    shared = [rule for rule in RULES if rule.for_all or rule in family.rules]
    return (*shared, *[rule for rule in family.rules if rule not in RULES])


__all__ = ["EARLY_RULES", "RULES", "rules_for"]
