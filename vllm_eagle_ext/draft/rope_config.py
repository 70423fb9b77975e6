# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding of a draft or target, from either spelling of its config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vllm_eagle_ext.draft.findings import Problem, key_problem


@dataclass(frozen=True, slots=True)
class Rope:
    theta: float | None  # None: not stated
    kind: str = "default"  # "yarn", "llama3", ..
    factor: float | None = None
    original_length: int | None = None  # positions it was trained on before it was stretched
    partial: float = 1.0  # share of each head that rotates

    def table(self, positions: int | None, *, is_raised: bool) -> int | None:
        """Return the positions in vLLM's table, or None where it has as many as are served.

        Args:
            positions: `max_position_embeddings`.
            is_raised: they are raised to what is served, whatever the kind.
        """
        if self.kind in _FROM_ORIGINAL:
            return int((self.factor or 0) * (self.original_length or 0)) or None
        return None if is_raised or self.kind in RAISED_KINDS else positions

    def rows(self, positions: int | None) -> dict[str, float]:
        """Name what sizes vLLM's cache of sines and cosines, each with the rows that it asks for.

        Args:
            positions: `max_position_embeddings`, where it is stated.
        """
        own, factor = "max_position_embeddings", self.factor or 1
        original = "original_max_position_embeddings"
        lengths: dict[str, float] = {own: positions or 0, original: self.original_length or 0}
        if self.kind in _FROM_ORIGINAL:
            lengths[f"{original} times factor"] = (self.original_length or positions or 0) * factor
        elif self.kind == "linear":
            lengths[f"{own} times factor"] = (positions or 0) * factor
        return lengths

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
# With another kind `max_position_embeddings` changes more than a table's length, so that 0.33 leaves it.
RAISED_KINDS = frozenset({"default", "linear", "llama3", "ntk", "proportional"})
_BLOCKS = ("rope_scaling", "rope_parameters")
_TRAINED = "state what the draft was trained with"
Positive = Annotated[float, Field(gt=0)]
_Numbers = Annotated[list[Positive], Field(min_length=1, fail_fast=True)]


class Strict(BaseModel):
    """Takes each value as JSON has it, and ignores other keys."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


class RopeBlock(Strict):
    """`rope_scaling` or `rope_parameters`, with whatever vLLM computes with unlooked at."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: Positive | None = None
    factor: Positive | None = None
    original_max_position_embeddings: Positive | None = None
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] | None = None
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    beta_fast: Positive | None = None
    beta_slow: Positive | None = None
    attention_factor: Positive | None = None
    alpha: Positive | None = None
    max_trained_positions: Positive | None = None
    short_mscale: Positive | None = None
    long_mscale: Positive | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    mixed_b: float | None = None
    short_factor: _Numbers | None = None
    long_factor: _Numbers | None = None
    mrope_section: _Numbers | None = None
    full_attention: dict[str, Any] | None = None  # Gemma's, one rope for each type of layer
    sliding_attention: dict[str, Any] | None = None


class RopeKeys(Strict):
    """The keys of rope in a config.json."""

    rope_theta: Positive | None = None
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] | None = None
    rope_scaling: RopeBlock | None = None
    rope_parameters: RopeBlock | None = None


def is_readable(config: Mapping[str, Any]) -> bool:
    """Tell whether the keys of rope hold what they may, and agree."""
    try:
        RopeKeys.model_validate(dict(config))
    except ValidationError:
        return False
    return not next(rope_contradictions(config), None)


def rope_contradictions(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Find spellings of a config, each valid as `RopeKeys`, that contradict each other.

    transformers before 5 reads the one block, and transformers since then the other.
    """
    scaling, parameters = (_block(config, name) for name in _BLOCKS)
    thetas: set[Any] = {block.get("rope_theta") for block in (config, scaling, parameters)} - {None}
    if len(thetas) > 1:
        allowed = "one value, wherever it is stated"
        yield key_problem("rope_theta", sorted(thetas), allowed=allowed, remedy=_TRAINED)
    read = scaling or parameters
    kinds = [read.get("rope_type"), read.get("type")]
    if scaling and (other := parameters.get("rope_type") or parameters.get("type")):
        kinds += [rope_kind(scaling), other]
    if len({_SAME_KIND.get(kind, kind) for kind in kinds if kind is not None}) > 1:
        allowed = "one kind of rope: rope_scaling is read, rope_parameters is not"
        yield key_problem("rope_type and type of the rope", kinds, allowed=allowed, remedy=_TRAINED)


def read_rope(config: Mapping[str, Any]) -> Rope:
    """Return the rope of a config that `is_readable`.

    A rope per layer type, as Gemma has, counts as not stated: no draft has one, so that there is nothing
    to compare.
    """
    block = rope_block(config)
    theta, partial = (
        config.get(key) if block.get(key) is None else block[key]
        for key in ("rope_theta", "partial_rotary_factor")
    )
    return Rope(
        theta=None if theta is None else float(theta),
        kind=rope_kind(block),
        factor=block.get("factor"),
        original_length=block.get("original_max_position_embeddings"),
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
