# SPDX-License-Identifier: Apache-2.0
"""What names modules in a `quantization_config`: lists, patterns, and GPTQ's `dynamic` rules, which give
single modules settings of their own. What else it may hold, vLLM's classes say in a start.

A rule is a pattern, matched from a name's beginning, and the first that fits decides. Files write it
for the names of the checkpoint; vLLM matches the names that modules have at run time, where another
layer may have the number, and where no module is called q_proj.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vllm_eagle_ext.draft.patterns import PatternError, first_matches

COMPRESSED = "compressed-tensors"
_LISTS = ("ignore", "exclude_modules", "ignored_layers", "modules_to_not_convert")
_OF_MODELOPT = {
    "FP8": "modelopt", "FP8_PER_CHANNEL_PER_TOKEN": "modelopt", "FP8_PB_WO": "modelopt",
    "NVFP4": "modelopt_fp4",
}  # fmt: skip


def normalised(config: Mapping[str, Any]) -> dict[str, Any]:
    """Name the method as vLLM does (`_normalize_quantization_config`), whatever way a file spells it."""
    method, nested = config.get("quant_method"), config.get("quantization")
    producer = config.get("producer")
    if (
        isinstance(producer, Mapping)
        and producer.get("name") == "modelopt"
        and isinstance(nested, Mapping)
    ):
        algorithm = str(nested.get("quant_algo")).upper()
        method = _OF_MODELOPT.get(algorithm, method)
    if isinstance(method, str):
        return {**config, "quant_method": method.lower().replace("compressed_tensors", COMPRESSED)}
    return dict(config)


def unnamed(config: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield dotted place, value and what is allowed of what can be read as no names of modules."""
    if not isinstance(config.get("quant_method"), str):
        yield "quant_method", config.get("quant_method"), "text"
    lists = {key: config[key] for key in _LISTS if config.get(key) is not None}
    groups = config.get("config_groups") or {}
    if not isinstance(groups, Mapping):
        yield "config_groups", groups, "an object"
        return
    for name, group in groups.items():
        if not isinstance(group, Mapping):
            yield f"config_groups.{name}", group, "an object"
            return
        lists[f"config_groups.{name}.targets"] = group.get("targets")
    for place, names in lists.items():
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            yield place, names, "a list of text"


def target_patterns(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the patterns by which the groups of compressed-tensors name modules."""
    groups = config.get("config_groups")
    blocks = groups.values() if isinstance(groups, Mapping) else ()
    lists = [block.get("targets") for block in blocks if isinstance(block, Mapping)]
    names = [name for names in lists if isinstance(names, list) for name in names]
    return tuple(name[3:] for name in names if isinstance(name, str) and name.startswith("re:"))


GPTQ_RULES = "dynamic"
GPTQ_METHODS = ("gptq", "gptq_marlin", "auto_gptq")
RULE_LEAVES_OUT = "-:"
_RULE_TAKES_IN = "+:"
_GPTQ_SETTINGS = ("bits", "group_size", "desc_act", "sym")  # that vLLM reads of a rule


def first_gptq_rules(config: Mapping[str, Any], names: Iterable[str]) -> dict[str, str | None]:
    """Return the rule that decides on each module, by published names; none where one is malformed."""
    names = tuple(names)
    if next(malformed_gptq_rules(config, names), None):
        return dict.fromkeys(names)
    rules: dict[str, str] = {}
    for rule in config.get(GPTQ_RULES) or {}:
        rules.setdefault(_pattern_of(rule), rule)  # the first of two that match the same decides
    found = first_matches(tuple(rules), names)
    return {name: None if pattern is None else rules[pattern] for name, pattern in found.items()}


def gptq_module_settings(config: Mapping[str, Any], names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return each module's settings, those of all modules among them."""
    return {name: _gptq_settings(config, rule) for name, rule in first_gptq_rules(config, names).items()}


def gptq_shared_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of modules for which there is no rule."""
    return _gptq_settings(config, None)


def _gptq_settings(config: Mapping[str, Any], rule: str | None) -> dict[str, Any]:
    own = {} if rule is None or rule.startswith(RULE_LEAVES_OUT) else config[GPTQ_RULES][rule]
    return {key: own.get(key, config.get(key)) for key in _GPTQ_SETTINGS}


def malformed_gptq_rules(config: Mapping[str, Any], names: Iterable[str]) -> Iterator[str]:
    """Yield the first thing that can be read as no rule; vLLM fails with it, or hangs."""
    rules = config.get(GPTQ_RULES) or {}
    if not isinstance(rules, Mapping):
        yield repr(rules)
        return
    for rule, own in rules.items():
        if not isinstance(own, Mapping) and not rule.startswith(RULE_LEAVES_OUT):
            yield repr({rule: own})
            return
    try:
        first_matches(tuple(dict.fromkeys(map(_pattern_of, rules))), tuple(names))
    except PatternError as error:
        rule = next(one for one in rules if _pattern_of(one) == error.pattern)
        yield str(PatternError(rule, error.why))
    except ValueError as error:
        yield str(error)


def gptq_rule_for(name: str, wanted: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a rule for the one module that has this name at run time."""
    return {f"{_RULE_TAKES_IN}{re.escape(name)}$": {k: v for k, v in wanted.items() if v is not None}}


def _pattern_of(rule: str) -> str:
    return rule.removeprefix(RULE_LEAVES_OUT).removeprefix(_RULE_TAKES_IN)
