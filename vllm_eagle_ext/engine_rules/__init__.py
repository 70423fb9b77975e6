# SPDX-License-Identifier: Apache-2.0
"""Rules about the engine around a draft, over vLLM's own VllmConfig, once vLLM has made it.

A rule says by its parameters when it applies: with `case` for drafts that this package serves, else for
every engine whose options leave the package on.
"""

from __future__ import annotations

from vllm_eagle_ext.checkpoint.findings import Rule
from vllm_eagle_ext.engine_rules import (
    cache_groups,
    draft_vocabulary,
    parallel,
    speculative,
    states,
    target,
    weights,
)

# Needs no VllmConfig: it is judged on a vLLM outside the tested range too, and before it builds.
UNTESTED_RULES = (weights.vllm_is_tested,)
_MODULES = (states, parallel, weights, draft_vocabulary, speculative, target, cache_groups)
ENGINE_RULES: tuple[Rule, ...] = tuple(
    value
    for module in _MODULES
    for value in vars(module).values()
    if isinstance(value, Rule) and value not in UNTESTED_RULES
)
