# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding and its stretched kinds, from the formulas.

f_i = theta^(-2i/r),  i < r/2                    r channels of each head turn, the others stay
(low, high) -> (low cos pf - high sin pf, high cos pf + low sin pf) times the size, at position p

linear: f / factor. llama3 (Llama 3.1): as f where a turn takes less than L/high, f / factor where more
than L/low, and a mixture between. yarn (Peng et al., 2023): f where it turns `beta_fast` times within
L and more, f / factor where `beta_slow` times and less, a ramp over the channels between; the size
grows with the factor. L is the length before stretching.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from vllm_eagle_ext.draft.rope_config import rope_block, rope_kind

KINDS = ("default", "linear", "llama3", "yarn")
_ORIGINAL = "original_max_position_embeddings"
# Per kind, the numbers that it cannot do without and those that it may have.
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _ORIGINAL),
    "yarn": ("factor", _ORIGINAL),
}
_FURTHER: Mapping[str, tuple[str, ...]] = {
    "yarn": ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"),
}
# For rows of only text, whose positions are the same in every section.
_WITHOUT_EFFECT = (
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved",
    "max_position_embeddings", _ORIGINAL,
)  # fmt: skip


@dataclass(frozen=True)
class Rotary:
    theta: float
    kind: str = "default"
    partial: float = 1.0  # share of each head that turns
    numbers: Mapping[str, Any] = field(default_factory=dict)  # of the kind, as config.json names them
    pairs: bool = False  # neighbouring channels turn together, not those half of r apart

    def __call__(self, x: torch.Tensor, position: int | torch.Tensor) -> torch.Tensor:  # [.., d]
        frequencies, size = self.frequencies(x.shape[-1])
        turning, rest = x.split([2 * len(frequencies), x.shape[-1] - 2 * len(frequencies)], dim=-1)
        cos, sin = (position * frequencies).cos() * size, (position * frequencies).sin() * size
        if self.pairs:
            low, high = turning[..., 0::2], turning[..., 1::2]
        else:
            low, high = turning.chunk(2, dim=-1)
        turned = [low * cos - high * sin, high * cos + low * sin]
        joined = torch.stack(turned, dim=-1).flatten(-2) if self.pairs else torch.cat(turned, dim=-1)
        return torch.cat([joined, rest], dim=-1)

    def frequencies(self, head_dim: int) -> tuple[torch.Tensor, float]:
        """Return [r / 2] radians per position, and the size by which cosine and sine are scaled."""
        half = int(head_dim * self.partial) // 2
        plain = self.theta ** (-torch.arange(half, dtype=torch.float32) / half)
        if self.kind == "linear":
            return plain / self.numbers["factor"], 1.0
        if self.kind == "llama3":
            return _llama3(plain, self.numbers), 1.0
        if self.kind == "yarn":
            return _yarn(plain, self.theta, self.numbers), _yarn_size(self.numbers)
        return plain, 1.0


def read_rotary(config: Mapping[str, Any], default_theta: float = 1e4) -> Rotary:
    """Read either spelling, `rope_scaling` or `rope_parameters`; a block's numbers win over the root's.

    Args:
        config: with the layers' keys at its root.
    """
    block = rope_block(config)
    kind = rope_kind(block)
    names = (*_NEEDED.get(kind, ()), *_FURTHER.get(kind, ()))
    numbers = {name: block[name] for name in names if block.get(name) is not None}
    if _ORIGINAL in names:
        # A length at the root wins and the longest position stands in for none, as in transformers.
        stated = config.get(_ORIGINAL) or numbers.get(_ORIGINAL) or config.get("max_position_embeddings")
        numbers |= {_ORIGINAL: stated} if stated else {}
    theta, partial = (
        next((value for value in (block.get(key), config.get(key)) if value is not None), default)
        for key, default in (("rope_theta", default_theta), ("partial_rotary_factor", 1.0))
    )
    return Rotary(float(theta), kind, float(partial), numbers)


def rope_unsupported_reason(config: Mapping[str, Any], *, sections: bool = True) -> str | None:
    """Say why no `Rotary` computes what this config says; None: one does.

    Args:
        sections: the engine keeps the config's M-RoPE sections.
    """
    block, rotary = rope_block(config), read_rotary(config)
    if sections and rotary.kind == "yarn" and block.get("mrope_section"):
        # From a table of several times its length, where the channels of the ramp are others.
        return "vLLM computes the draft's yarn rope otherwise where it has mrope_section"
    if rotary.kind not in KINDS:
        return f"the reference has no rope of the kind {rotary.kind!r}"
    missing = [name for name in _NEEDED[rotary.kind] if name not in rotary.numbers]
    if missing:
        return f"{', '.join(missing)} of the draft's {rotary.kind} rope is not stated"
    known = (*_WITHOUT_EFFECT, *_NEEDED[rotary.kind], *_FURTHER.get(rotary.kind, ()))
    stated = sorted(name for name, value in block.items() if value not in (None, False))
    unknown = [name for name in stated if name not in known]
    if rotary.kind == "default":  # keys of other kinds have no say in it
        every = {name for table in (_NEEDED, _FURTHER) for names in table.values() for name in names}
        unknown = [name for name in unknown if name not in every]
    if unknown:
        return f"the reference has no use for {', '.join(unknown)} of the draft's rope"
    return None


def _llama3(plain: torch.Tensor, numbers: Mapping[str, Any]) -> torch.Tensor:
    low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
    turns = plain * numbers[_ORIGINAL] / (2 * math.pi)  # within the original length
    kept = ((turns - low) / (high - low)).clamp(0, 1) if high != low else (turns > high).float()
    return plain * kept + plain / numbers["factor"] * (1 - kept)


def _yarn(plain: torch.Tensor, theta: float, numbers: Mapping[str, Any]) -> torch.Tensor:
    r = 2 * len(plain)

    def turning(times: float) -> float:  # the channel that turns so often
        return r * math.log(numbers[_ORIGINAL] / (times * 2 * math.pi)) / (2 * math.log(theta))

    first = turning(numbers.get("beta_fast") or 32)
    last = turning(numbers.get("beta_slow") or 1)
    if numbers.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, r - 1)
    width = last - first or 1e-3
    ramp = ((torch.arange(len(plain)) - first) / width).clamp(0, 1)
    return plain * (1 - ramp) + plain / numbers["factor"] * ramp


def _yarn_size(numbers: Mapping[str, Any]) -> float:
    if numbers.get("attention_factor") is not None:
        return float(numbers["attention_factor"])
    mscale, whole = numbers.get("mscale"), numbers.get("mscale_all_dim")
    if mscale and whole:
        return _growth(numbers["factor"], mscale) / _growth(numbers["factor"], whole)
    return _growth(numbers["factor"])


def _growth(factor: float, times: float = 1.0) -> float:
    return 0.1 * times * math.log(factor) + 1 if factor > 1 else 1.0
