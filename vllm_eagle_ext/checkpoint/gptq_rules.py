# SPDX-License-Identifier: Apache-2.0
"""GPTQ's `dynamic` rules, which give single modules settings of their own.

A rule is a pattern, matched from a name's beginning, and the first that fits decides. Files write it
for the names of the checkpoint; vLLM matches the names that modules have at run time, where another
layer may have the number, and where no module is called q_proj.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

KEY = "dynamic"
METHODS = ("gptq", "gptq_marlin", "auto_gptq")
LEFT_OUT = "-:"
_OTHERS = "+:"
_SETTINGS = ("bits", "group_size", "desc_act", "sym")  # that vLLM reads of a rule


def first_rule(config: Mapping[str, Any], name: str) -> str | None:
    """Return the rule that decides on a module, by its published name."""
    fitting = (rule for rule in _rules(config) if re.match(_pattern(rule), name))
    return next(fitting, None)


def settings(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a module's settings, those of all modules among them."""
    rule = first_rule(config, name)
    own = {} if rule is None or rule.startswith(LEFT_OUT) else config[KEY][rule]
    return {key: own.get(key, config.get(key)) for key in _SETTINGS}


def malformed(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what can be read as no rule; vLLM fails with each of them."""
    rules = config.get(KEY) or {}
    if not isinstance(rules, Mapping):
        yield repr(rules)
        return
    for rule, own in rules.items():
        try:
            re.compile(_pattern(rule))
        except re.error:
            yield repr(rule)
        else:
            if not isinstance(own, Mapping) and not rule.startswith(LEFT_OUT):
                yield repr({rule: own})


def by_name(name: str, wanted: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a rule for the one module that has this name at run time."""
    return {f"{_OTHERS}{re.escape(name)}$": {k: v for k, v in wanted.items() if v is not None}}


def _pattern(rule: str) -> str:
    return rule.removeprefix(LEFT_OUT).removeprefix(_OTHERS)


def _rules(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rules of a draft whose rules are well formed."""
    return {} if next(malformed(config), None) else config.get(KEY) or {}
