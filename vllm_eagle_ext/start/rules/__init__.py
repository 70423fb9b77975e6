# SPDX-License-Identifier: Apache-2.0
"""Rules about the engine around a draft, over vLLM's own VllmConfig, once vLLM has made it.

A rule says by its parameters when it applies: with `case` for drafts that this package serves, else for
every engine whose options leave the package on.
"""

from __future__ import annotations

from vllm_eagle_ext.draft.findings import Problem, Problems, Rule, Severity, rule, rules_in
from vllm_eagle_ext.draft.rules import every_rule
from vllm_eagle_ext.errors import EagleExtError
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
    each
    for each in rules_in(states, parallel, weights, draft_vocabulary, speculative, target, cache_groups)
    if each not in UNTESTED_RULES
)


# What ended a start, as `start/vllm_says.py` words it.
@rule(Severity.ERROR, error=None)
def vllm_says(problem: Problem) -> Problems:
    """vLLM and transformers take draft, target and options."""
    yield problem


@rule(Severity.ERROR, error=EagleExtError)
def refused_at_start(problem: Problem) -> Problems:
    """No error of this package ends the start unless a rule finds it."""
    yield problem


def start_rules() -> tuple[Rule, ...]:
    """Return the rules of a start and its end."""
    return (*ENGINE_RULES, *UNTESTED_RULES, vllm_says, refused_at_start)


def printed_rules() -> dict[str, Rule]:
    """Return name -> rule that `check` prints."""
    return {each.name: each for each in (*every_rule(), *start_rules())}
