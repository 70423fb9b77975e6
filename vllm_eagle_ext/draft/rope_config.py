# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding of a draft or target, from either spelling of its config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_eagle_ext.draft.findings import Problem


@dataclass(frozen=True, slots=True)
class Rope:
    theta: float | None  # None: not stated
    kind: str = "default"  # "yarn", "llama3", ..
    factor: float | None = None
    original_length: int | None = None  # positions it was trained on before it was stretched
    partial: float = 1.0  # share of each head that rotates

    def rows(self, positions: int | None) -> dict[str, float]:
        """Name what sizes vLLM's cache of sines and cosines, each with the rows that it asks for.

        Args:
            positions: `max_position_embeddings`, where it is stated.
        """
        own, factor = "max_position_embeddings", self.factor or 1
        original = "original_max_position_embeddings"
        found: dict[str, float] = {own: positions or 0, original: self.original_length or 0}
        if self.kind in _FROM_ORIGINAL:
            found[f"{original} times factor"] = (self.original_length or positions or 0) * factor
        elif self.kind == "linear":
            found[f"{own} times factor"] = (positions or 0) * factor
        return found

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

# Older names of the same; vLLM takes the one for the other.
_SAME_KIND = {"su": "longrope", "mrope": "default"}
# vLLM's cache of these has a row for each position after stretching.
_FROM_ORIGINAL = frozenset({"yarn", "deepseek_yarn", "deepseek_llama_scaling"})
_NUMBERS = (
    "rope_theta", "factor", "original_max_position_embeddings", "partial_rotary_factor",
    "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor", "alpha",
    "max_trained_positions", "short_mscale", "long_mscale",
)  # fmt: skip
_OF_ANY_SIGN = ("mscale", "mscale_all_dim", "mixed_b")
_LISTS = ("short_factor", "long_factor", "mrope_section")
_BLOCKS = ("rope_scaling", "rope_parameters")
# Without these transformers or vLLM knows no such rope.
_NEEDED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("linear", "dynamic", "ntk", "yarn"), ("factor",)),
    **dict.fromkeys(
        ("deepseek_yarn", "deepseek_llama_scaling"), ("factor", "original_max_position_embeddings")
    ),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    **dict.fromkeys(("longrope", "su"), ("short_factor", "long_factor")),
    **dict.fromkeys(("mrope", "bailing_mrope", "openpangu"), ("mrope_section",)),
}


def rope_problems(config: Mapping[str, Any]) -> list[Problem]:
    """Find values that are no positive numbers, and spellings that contradict each other."""
    problems = []
    blocks = {name: config.get(name) for name in _BLOCKS}
    for name, block in blocks.items():
        if block is not None and not isinstance(block, Mapping):
            problems.append(_rope_fault(name, block, "an object"))
    for name, block in {"": config, **blocks}.items():
        if isinstance(block, Mapping):
            problems += _value_problems(name, block)
    thetas = {
        block["rope_theta"]
        for block in (config, *blocks.values())
        if isinstance(block, Mapping) and _is_positive(block.get("rope_theta"))
    }
    if len(thetas) > 1:
        problems.append(
            _rope_fault("rope_theta", sorted(thetas), "one value, wherever it is stated", _TRAINED)
        )
    if not problems:
        problems += _kind_problems(config)
    return problems


def _value_problems(name: str, block: Mapping[str, Any]) -> Iterator[Problem]:
    """Find numbers that no rope can have.

    Args:
        name: of the block; "" for the config itself.
        block: what the config states there.
    """
    for key in _NUMBERS if name else _NUMBERS[:4]:
        value = block.get(key)
        if value is not None and not _is_positive(value):
            yield _rope_fault(f"{name}.{key}".strip("."), value, "a positive number")
        elif key == "partial_rotary_factor" and value is not None and value > 1:
            yield _rope_fault(f"{name}.{key}".strip("."), value, "up to 1, all channels of a head")
    if not name:
        return
    for key in ("rope_type", "type"):
        if key in block and not isinstance(block[key], str):
            yield _rope_fault(f"{name}.{key}", block[key], "a name, or no such key")
    for key in _OF_ANY_SIGN:
        if key in block and not _is_number(block[key]):
            yield _rope_fault(f"{name}.{key}", block[key], "a number, or no such key")
    for key in _LISTS:
        value = block.get(key, [1])
        if not isinstance(value, list) or not value or not all(map(_is_positive, value)):
            yield _rope_fault(f"{name}.{key}", value, "a list of positive numbers, or no such key")
    for key in ("full_attention", "sliding_attention"):  # Gemma's, one rope for each type of layer
        if not isinstance(block.get(key, {}), Mapping):
            yield _rope_fault(f"{name}.{key}", block[key], "an object, or no such key")


def _kind_problems(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Find two blocks of different kinds, two names of a kind, and what a kind lacks.

    transformers before 5 reads the one block, and transformers since then the other.
    """
    read, name = rope_block(config), "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    names = [read[key] for key in ("rope_type", "type") if key in read]
    if len({_SAME_KIND.get(kind, kind) for kind in names}) > 1:
        yield _rope_fault(f"rope_type and type of {name}", names, "one kind of rope", _TRAINED)
    for key in _NEEDED.get(rope_kind(read), ()):
        if key not in read:
            allowed = f"a value: it is not stated, and {rope_kind(read)!r} needs it"
            yield _rope_fault(f"{name}.{key}", None, allowed, _TRAINED)
    scaling, parameters = (_block(config, name) for name in ("rope_scaling", "rope_parameters"))
    stated = parameters.get("rope_type") or parameters.get("type")
    if not scaling or not stated:
        return
    kinds = [rope_kind(scaling), stated]
    if len({_SAME_KIND.get(kind, kind) for kind in kinds}) > 1:
        field = "rope_type of rope_scaling and rope_parameters"
        allowed = "one kind of rope: rope_scaling is read, rope_parameters is not"
        yield _rope_fault(field, kinds, allowed, _TRAINED)


def read_rope(config: Mapping[str, Any]) -> Rope:
    """Return the rope of a config without `rope_problems`.

    A rope per layer type, as Gemma has, counts as not stated: no draft has one, so that there is nothing
    to compare.
    """
    stated = rope_block(config)
    theta, partial = (
        config.get(key) if stated.get(key) is None else stated[key]
        for key in ("rope_theta", "partial_rotary_factor")
    )
    return Rope(
        theta=None if theta is None else float(theta),
        kind=rope_kind(stated),
        factor=stated.get("factor"),
        original_length=stated.get("original_max_position_embeddings"),
        partial=1.0 if partial is None else float(partial),
    )


def rope_block(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the block that transformers 5 reads.

    `rope_scaling` takes the place of `rope_parameters`, whole.
    """
    return _block(config, "rope_scaling") or _block(config, "rope_parameters")


def rope_kind(block: Mapping[str, Any]) -> str:
    return str(block.get("rope_type") or block.get("type") or "default")


def _block(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    block = config.get(name)
    return block if isinstance(block, Mapping) else {}


def _is_positive(value: object) -> bool:
    return type(value) in (int, float) and 0 < value < float("inf")  # type: ignore[operator]


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < float("inf")  # type: ignore[arg-type]


_TRAINED = "state what the draft was trained with"


def _rope_fault(field: str, value: object, allowed: str, remedy: str = "") -> Problem:
    return Problem(
        field=f"{field} of the draft's config.json",
        value=value,
        allowed=allowed,
        remedy=remedy or f"{_TRAINED}, or leave the key out if it was trained without",
    )
