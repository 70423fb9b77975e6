# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding from the formula. Frequencies of stretched kinds and their size are transformers'.

f_i = theta^(-2i/r),  i < r/2                    r channels of each head turn, the others stay
(low, high) -> (low cos pf - high sin pf, high cos pf + low sin pf) times the size, at position p
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from vllm_eagle_ext.draft.rope_config import rope_block, rope_kind

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
        numbers = tuple(sorted(self.numbers.items()))
        return _frequencies(head_dim, self.theta, self.kind, self.partial, numbers)


@cache
def _frequencies(
    head_dim: int, theta: float, kind: str, partial: float, numbers: tuple[tuple[str, Any], ...]
) -> tuple[torch.Tensor, float]:
    if kind == "default":
        half = int(head_dim * partial) // 2
        return theta ** (-torch.arange(half, dtype=torch.float32) / half), 1.0
    block = {"rope_type": kind, "rope_theta": theta, "partial_rotary_factor": partial, **dict(numbers)}
    config = LlamaConfig(head_dim=head_dim, rope_parameters=block)
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))


def read_rotary(config: Mapping[str, Any], default_theta: float = 1e4) -> Rotary:
    """Read `rope_scaling` or `rope_parameters`; a block's numbers win over the root's."""
    block = rope_block(config)
    kind = rope_kind(block)
    names = (*_NEEDED.get(kind, ()), *_FURTHER.get(kind, ()))
    numbers = {name: block[name] for name in names if block.get(name) is not None}
    if _ORIGINAL in names:
        # A length at the root wins and the longest position stands in for none, as in transformers.
        length = config.get(_ORIGINAL) or numbers.get(_ORIGINAL) or config.get("max_position_embeddings")
        numbers |= {_ORIGINAL: length} if length else {}
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
    if rotary.kind not in _NEEDED:
        return f"the reference has no rope of the kind {rotary.kind!r}"
    missing = [name for name in _NEEDED[rotary.kind] if name not in rotary.numbers]
    if missing:
        return f"{', '.join(missing)} of the draft's {rotary.kind} rope is not stated"
    known = (*_WITHOUT_EFFECT, *_NEEDED[rotary.kind], *_FURTHER.get(rotary.kind, ()))
    keys = sorted(name for name, value in block.items() if value not in (None, False))
    unknown = [name for name in keys if name not in known]
    if rotary.kind == "default":  # keys of other kinds have no say in it
        every = {name for table in (_NEEDED, _FURTHER) for names in table.values() for name in names}
        unknown = [name for name in unknown if name not in every]
    reason = f"the reference has no use for {', '.join(unknown)} of the draft's rope"
    return reason if unknown else None
