# SPDX-License-Identifier: Apache-2.0
"""The types that vLLM wants of a `quantization_config`, which it does not check before it uses them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from vllm_eagle_ext.checkpoint.patterns import may_never_end

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
}  # fmt: skip
_Names = Annotated[list[str], Field(fail_fast=True)]


class _Arguments(BaseModel):
    """How compressed-tensors quantises weights or activations."""

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


class _Group(BaseModel):
    targets: Annotated[_Names, Field(min_length=1)]
    weights: _Arguments | None = None
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
    return words or str(found["msg"])


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
