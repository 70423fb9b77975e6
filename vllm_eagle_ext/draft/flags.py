# SPDX-License-Identifier: Apache-2.0
"""Flags that publishers write at top level, in `eagle_config` or in the speculators block alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FLAGS = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual")
_ALIASES = {"fc_norm": ("fc_norm", "use_aux_norm")}
LAYER_BLOCK = "transformer_layer_config"  # of the speculators format
_BLOCKS = ("eagle_config", LAYER_BLOCK)


@dataclass(frozen=True, slots=True)
class Flag:
    value: bool
    source: str  # the key it came from, "option ..", or "default"
    stated: tuple[tuple[str, bool], ...] = ()  # every place that states it

    def __bool__(self) -> bool:
        return self.value

    @property
    def is_contradictory(self) -> bool:
        return len({value for _, value in self.stated}) > 1


def read_flag(config: Mapping[str, Any], name: str, *, default: bool = False) -> Flag:
    """Read a flag.

    Where places contradict each other, the first one wins, and a rule reports that they do.
    """
    stated = []
    for block in ("", *_BLOCKS):
        holder = config.get(block) if block else config
        for alias in _ALIASES.get(name, (name,)):
            value = holder.get(alias) if isinstance(holder, Mapping) else None
            if value is not None:
                stated.append((f"{block}.{alias}".strip("."), bool(value)))
    if stated:
        return Flag(stated[0][1], stated[0][0], tuple(stated))
    return Flag(default, "default")
