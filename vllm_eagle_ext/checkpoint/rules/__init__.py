# SPDX-License-Identifier: Apache-2.0
"""Every rule that a draft must keep, one function each."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_eagle_ext.checkpoint.families.record import Family
from vllm_eagle_ext.checkpoint.findings import Rule
from vllm_eagle_ext.checkpoint.rules import (
    asked,
    aux_layers,
    blocks,
    early,
    gates,
    keys,
    norms,
    pairing,
    proposal_heads,
    quantised,
    tensors,
    vllms_loader,
    vocabulary,
    weights,
    windows,
)

EARLY_RULES = early.RULES
# Draft and target come first: with another target, most of the rest fails as a consequence.
RULES = (
    *pairing.RULES,
    *asked.RULES,
    *windows.RULES,
    *norms.RULES,
    *aux_layers.RULES,
    *tensors.RULES,
    *gates.RULES,
    *quantised.RULES,
    *vocabulary.RULES,
    *blocks.RULES,
    *proposal_heads.RULES,
    *vllms_loader.RULES,
    *keys.RULES,
    *weights.RULES,
)


def rules_for(family: Family) -> Iterator[Rule]:
    """Yield the rules for all and the family's, in the order above, then those that only it lists."""
    yield from (rule for rule in RULES if rule.for_all or rule in family.rules)
    yield from (rule for rule in family.rules if rule not in RULES)


__all__ = ["EARLY_RULES", "RULES", "rules_for"]
