# SPDX-License-Identifier: Apache-2.0
"""Rules about the engine around a draft, over vLLM's own VllmConfig, once vLLM has made it.

A rule says by its parameters when it applies: with `case` for drafts that this package serves, else for
every engine whose options leave the package on.
"""

from __future__ import annotations

from vllm_eagle_ext.draft.findings import rules_in
from vllm_eagle_ext.start.rules import (
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
ENGINE_RULES = tuple(
    rule
    for rule in rules_in(states, parallel, weights, draft_vocabulary, speculative, target, cache_groups)
    if rule not in UNTESTED_RULES
)
