# SPDX-License-Identifier: Apache-2.0
"""The types that vLLM wants of a `quantization_config`, which it does not check before it uses them, and
GPTQ's `dynamic` rules, which give single modules settings of their own.

A rule is a pattern, matched from a name's beginning, and the first that fits decides. Files write it
for the names of the checkpoint; vLLM matches the names that modules have at run time, where another
layer may have the number, and where no module is called q_proj.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

from vllm_eagle_ext.checkpoint.patterns import PatternError, first_matches, may_never_end

# vLLM's, as of its releases that are tested; `test_hostile_patterns.py` asks it.
KNOWN_METHODS = frozenset(
    {
        "awq", "auto_awq", "fp8", "fbgemm_fp8", "fp_quant", "modelopt", "modelopt_fp4",
        "modelopt_mxfp8", "modelopt_mixed", "auto_gptq", "gptq", "gptq_marlin", "awq_marlin",
        "humming", "compressed-tensors", "experts_int8", "quark", "moe_wna16", "torchao", "inc",
        "mxfp4", "gpt_oss_mxfp4", "deepseek_v4_fp8", "online", "fp8_per_tensor", "fp8_per_block",
        "fp8_per_channel", "int8_per_channel_weight_only", "nvfp4_per_token", "mxfp8",
        "auto-round", "bitsandbytes",  # other names of methods, which vLLM maps to its own
    }
)  # fmt: skip
# vLLM takes these words in capitals too.
_Lower = BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
COMPRESSED = "compressed-tensors"
_OF_MODELOPT = {
    "FP8": "modelopt", "FP8_PER_CHANNEL_PER_TOKEN": "modelopt", "FP8_PB_WO": "modelopt",
    "NVFP4": "modelopt_fp4",
}  # fmt: skip
_KINDS = r"(literal\[|list\[|str$|bool$|int$|constrained|function|tagged)"
_WORDS = {
    "missing": "stated", "string": "text", "int": "a whole number", "bool": "true or false",
    "dict": "an object", "model": "an object", "list": "a list", "too_short": "at least one entry",
    "extra": "no such key",
}  # fmt: skip
_Names = Annotated[list[str], Field(fail_fast=True)]


class _Arguments(BaseModel, extra="forbid"):
    """How compressed-tensors quantises weights or activations, as its own class checks that."""

    num_bits: int = 8
    type: Annotated[Literal["int", "float"], _Lower] = "int"
    symmetric: bool = True
    group_size: int | None = None
    strategy: (
        Annotated[
            Literal["tensor", "channel", "group", "block", "token", "tensor_group", "attn_head"], _Lower
        ]
        | None
    ) = None
    block_structure: list[int] | str | None = None
    dynamic: Literal["local"] | bool = False
    actorder: Annotated[Literal["weight", "static", False], _Lower] | None = None  # what vLLM loads
    observer: str | None = None
    observer_kwargs: dict[str, Any] = Field(default={})
    scale_dtype: str | None = None
    zp_dtype: str | None = None

    @model_validator(mode="after")
    def _agree(self) -> _Arguments:
        """Refuse what compressed-tensors takes only together with other values."""
        size = self.group_size
        strategy = self.strategy or ("tensor" if size is None else "group" if size > 0 else "channel")
        in_groups = strategy in ("group", "tensor_group")
        if strategy == "token" and not self.dynamic:
            raise ValueError('"dynamic": true with the strategy "token"')
        if in_groups != (size is not None and size > 0):
            raise ValueError('a positive group_size with the strategy "group", and none with others')
        if (strategy == "block") != (self.block_structure is not None):
            raise ValueError('block_structure with the strategy "block", and none with others')
        if self.dynamic and strategy in ("channel", "block", "attn_head"):
            raise ValueError(f'"dynamic": false with the strategy "{strategy}"')
        return self


class _Group(BaseModel):
    targets: Annotated[_Names, Field(min_length=1)]
    weights: _Arguments
    input_activations: _Arguments | None = None
    output_activations: _Arguments | None = None
    format: str | None = None


class _Config(BaseModel):
    quant_method: str
    ignore: _Names | None = None
    exclude_modules: _Names | None = None
    ignored_layers: _Names | None = None
    modules_to_not_convert: _Names | None = None
    bits: int | None = None
    group_size: int | None = None
    desc_act: bool | None = None
    sym: bool | None = None


class _CompressedTensors(_Config):
    config_groups: dict[str, _Group] = Field(default={})
    format: str | None = None


def wrong_types(config: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield dotted place, value and what is allowed of what has a wrong type."""
    kind = _CompressedTensors if config.get("quant_method") == COMPRESSED else _Config
    try:
        kind.model_validate(dict(config))
    except ValidationError as error:
        for found in error.errors(include_url=False):
            value = None if found["type"] == "missing" else found["input"]
            yield _place(found["loc"]), value, _allowed(found)


def _place(parts: tuple[str | int, ...]) -> str:
    """Join keys, without the names that pydantic gives to the kinds of a union."""
    return ".".join(str(part) for part in parts if not re.match(_KINDS, str(part)))


def _allowed(found: Mapping[str, Any]) -> str:
    if found["type"] == "literal_error":
        return str(found["ctx"]["expected"])
    words = next((words for start, words in _WORDS.items() if found["type"].startswith(start)), None)
    return words or str(found["msg"]).removeprefix("Value error, ")


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


def endless_patterns(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield keys and values that may be patterns without an end, of a method that is not understood."""
    left: list[Any] = [config]
    while left:
        value = left.pop()
        if isinstance(value, str) and may_never_end(value):
            yield value
        elif isinstance(value, Mapping):
            left += [*value, *value.values()]
        elif isinstance(value, list):
            left += value


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
