# SPDX-License-Identifier: Apache-2.0
"""The target layers whose states a draft reads, and how a family names them in config.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Convention = Literal["auto", "input", "output"]
Override = Convention | Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class IdConvention:
    """How aux layer ids are read that are nested in a block of config.json."""

    places: tuple[str, ...]  # dotted keys, its own first
    is_required: bool = False  # a draft that names no layers is refused; else EAGLE-3's are taken
    names_inputs_without: int | None = None  # nested ids without this one name inputs, not outputs


@dataclass(frozen=True, slots=True)
class BlockOrder:
    """What the blocks of `fc` follow where ids are listed out of order."""

    follows: Literal["list", "layers"]
    doubt: str = ""  # on what a guess rests; empty where it is certain


@dataclass(frozen=True, slots=True)
class AuxLayers:
    """Ids ascend, as vLLM captures the layers; `order[k]` is the block of `fc` that reads the k-th."""

    layer_ids: tuple[int, ...]
    rule: str  # which rule chose them, for the log
    published_ids: tuple[int, ...] | None  # as the config has them; None: it names none
    order: tuple[int, ...]
    listed: tuple[int, ...] = ()  # in the order of the config or the option
    blocks: BlockOrder | None = None  # what `order` follows; None: the list ascends

    @property
    def is_reordered(self) -> bool:
        return list(self.order) != sorted(self.order)


NO_AUX_LAYERS = AuxLayers((), "the draft is one without aux states", None, ())
