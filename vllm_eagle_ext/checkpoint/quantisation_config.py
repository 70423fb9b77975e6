# SPDX-License-Identifier: Apache-2.0
"""The types that vLLM wants of a `quantization_config`, which it does not check before it uses them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

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
_Names = Annotated[list[str], Field(fail_fast=True)]


class _Arguments(BaseModel):
    """How compressed-tensors quantises weights or activations."""

    num_bits: int = 8
    type: Literal["int", "float"] = "int"
    symmetric: bool = True
    group_size: int | None = None
    strategy: (
        Literal["tensor", "channel", "group", "block", "token", "tensor_group", "attn_head"] | None
    ) = None
    block_structure: list[int] | None = None
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
    config_groups: dict[str, _Group]
    format: str


def wrong_types(config: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield dotted place, value and what is allowed of what has a wrong type."""
    kind = _CompressedTensors if config.get("quant_method") == "compressed-tensors" else _Config
    try:
        kind.model_validate(dict(config))
    except ValidationError as error:
        for found in error.errors(include_url=False):
            missing, message = found["type"] == "missing", found["msg"]
            place = ".".join(str(part) for part in found["loc"])
            yield place, None if missing else found["input"], message[:1].lower() + message[1:]


def target_patterns(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the patterns by which the groups of compressed-tensors name modules."""
    groups = config.get("config_groups")
    blocks = groups.values() if isinstance(groups, Mapping) else ()
    lists = [block.get("targets") for block in blocks if isinstance(block, Mapping)]
    names = [name for names in lists if isinstance(names, list) for name in names]
    return tuple(name[3:] for name in names if isinstance(name, str) and name.startswith("re:"))
