# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding of a draft or target, from either spelling of its config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_eagle_ext.checkpoint.findings import Problem


@dataclass(frozen=True, slots=True)
class Rope:
    theta: float | None  # None: not stated
    kind: str = "default"  # "yarn", "llama3", ..
    factor: float | None = None
    original_length: int | None = None  # positions it was trained on before it was stretched
    partial: float = 1.0  # share of each head that rotates

    def __str__(self) -> str:
        parts = ["theta not stated" if self.theta is None else f"theta {self.theta:g}"]
        if self.kind != "default":
            times = f" x{self.factor:g}" if self.factor else ""
            parts.append(self.kind + times)
        if self.original_length:
            parts.append(f"from {self.original_length} positions")
        if self.partial != 1:
            parts.append(f"{self.partial:g} of each head")
        return ", ".join(parts)


# Of vLLM's `get_rope`, and how transformers calls one of them.
COMPUTED_KINDS = frozenset(
    {
        "default", "linear", "dynamic", "ntk", "yarn", "llama3", "longrope", "deepseek_yarn",
        "deepseek_llama_scaling", "mllama4", "openpangu", "proportional", "bailing_mrope", "mrope", "su",
    }
)  # fmt: skip

_NUMBERS = ("rope_theta", "factor", "original_max_position_embeddings", "partial_rotary_factor")


def rope_problems(config: Mapping[str, Any]) -> list[Problem]:
    """Values that are no positive numbers, or spellings that contradict each other."""
    problems = []
    blocks = {name: config.get(name) for name in ("rope_parameters", "rope_scaling")}
    for name, block in blocks.items():
        if block is not None and not isinstance(block, Mapping):
            problems.append(_problem(name, block, "an object"))
    for name, block in {"": config, **blocks}.items():
        if not isinstance(block, Mapping):
            continue
        for key in _NUMBERS:
            value = block.get(key)
            if value is not None and not _is_positive(value):
                problems.append(_problem(f"{name}.{key}".strip("."), value, "a positive number"))
        for key in ("rope_type", "type"):
            if name and key in block and not isinstance(block[key], str):
                problems.append(_problem(f"{name}.{key}", block[key], "a name, or no such key"))
    thetas = {
        block["rope_theta"]
        for block in (config, *blocks.values())
        if isinstance(block, Mapping) and _is_positive(block.get("rope_theta"))
    }
    if len(thetas) > 1:
        problems.append(_problem("rope_theta", sorted(thetas), "one value, wherever it is stated"))
    return problems


def read_rope(config: Mapping[str, Any]) -> Rope:
    """Of a config without `rope_problems`. A rope per layer type, as Gemma has, counts as not stated:
    no draft has one, so that there is nothing to compare."""
    parameters = _block(config, "rope_parameters")
    stated = {**_block(config, "rope_scaling"), **parameters}
    theta, partial = (
        stated.get(key) if config.get(key) is None else config[key]
        for key in ("rope_theta", "partial_rotary_factor")
    )
    kind = stated.get("rope_type") or stated.get("type") or "default"
    return Rope(
        theta=None if theta is None else float(theta),
        kind=str(kind),
        factor=stated.get("factor"),
        original_length=stated.get("original_max_position_embeddings"),
        partial=1.0 if partial is None else float(partial),
    )


def _block(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    block = config.get(name)
    return block if isinstance(block, Mapping) else {}


def _is_positive(value: object) -> bool:
    return type(value) in (int, float) and 0 < value < float("inf")  # type: ignore[operator]


def _problem(field: str, value: object, allowed: str) -> Problem:
    return Problem(
        field=f"{field} of the draft's config.json",
        value=value,
        allowed=allowed,
        remedy="use the config.json that was published with the draft",
    )
