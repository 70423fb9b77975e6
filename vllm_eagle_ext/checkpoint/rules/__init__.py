# SPDX-License-Identifier: Apache-2.0
"""Every rule that a draft must keep, one function each."""

from __future__ import annotations

from vllm_eagle_ext.checkpoint.rules import blocks, early, norms, pairing, tensors, vocabulary

EARLY_RULES = early.RULES
RULES = (*tensors.RULES, *norms.RULES, *vocabulary.RULES, *pairing.RULES, *blocks.RULES)

__all__ = ["EARLY_RULES", "RULES"]
