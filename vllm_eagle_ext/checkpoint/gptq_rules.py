# SPDX-License-Identifier: Apache-2.0
"""GPTQ's `dynamic` rules, which give single modules settings of their own.

A rule is a pattern, matched from a name's beginning, and the first that fits decides. Files write it
for the names of the checkpoint; vLLM matches the names that modules have at run time, where another
layer may have the number, and where no module is called q_proj.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vllm_eagle_ext.checkpoint.patterns import PatternError, first_matches

KEY = "dynamic"
METHODS = ("gptq", "gptq_marlin", "auto_gptq")
LEFT_OUT = "-:"
_OTHERS = "+:"
_SETTINGS = ("bits", "group_size", "desc_act", "sym")  # that vLLM reads of a rule


def first_rules(config: Mapping[str, Any], names: Iterable[str]) -> dict[str, str | None]:
    """Return the rule that decides on each module, by published names; none where one is malformed."""
    names = tuple(names)
    if next(malformed(config, names), None):
        return dict.fromkeys(names)
    rules: dict[str, str] = {}
    for rule in config.get(KEY) or {}:
        rules.setdefault(_pattern(rule), rule)  # the first of two that match the same decides
    found = first_matches(tuple(rules), names)
    return {name: None if pattern is None else rules[pattern] for name, pattern in found.items()}


def settings(config: Mapping[str, Any], names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return each module's settings, those of all modules among them."""
    return {name: _settings(config, rule) for name, rule in first_rules(config, names).items()}


def shared_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of modules for which there is no rule."""
    return _settings(config, None)


def _settings(config: Mapping[str, Any], rule: str | None) -> dict[str, Any]:
    own = {} if rule is None or rule.startswith(LEFT_OUT) else config[KEY][rule]
    return {key: own.get(key, config.get(key)) for key in _SETTINGS}


def malformed(config: Mapping[str, Any], names: Iterable[str]) -> Iterator[str]:
    """Yield the first thing that can be read as no rule; vLLM fails with it, or hangs."""
    rules = config.get(KEY) or {}
    if not isinstance(rules, Mapping):
        yield repr(rules)
        return
    for rule, own in rules.items():
        if not isinstance(own, Mapping) and not rule.startswith(LEFT_OUT):
            yield repr({rule: own})
            return
    try:
        first_matches(tuple(dict.fromkeys(map(_pattern, rules))), tuple(names))
    except PatternError as error:
        rule = next(one for one in rules if _pattern(one) == error.pattern)
        yield str(PatternError(rule, error.why))
    except ValueError as error:
        yield str(error)


def by_name(name: str, wanted: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a rule for the one module that has this name at run time."""
    return {f"{_OTHERS}{re.escape(name)}$": {k: v for k, v in wanted.items() if v is not None}}


def _pattern(rule: str) -> str:
    return rule.removeprefix(LEFT_OUT).removeprefix(_OTHERS)
