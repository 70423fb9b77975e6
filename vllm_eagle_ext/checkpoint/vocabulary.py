# SPDX-License-Identifier: Apache-2.0
"""The map from a reduced draft vocabulary into the target's.

`d2t` holds offsets, target id = draft id + d2t[draft id] (SafeAILab/EAGLE); some exporters write the
target ids themselves. A map keeps the order of the tokens, which tells the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

MapKind = Literal["offset", "absolute"]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    size: int  # Vd
    map_kind: MapKind | None  # None: no d2t, or one that is no map

    def __str__(self) -> str:
        spelling = {"offset": "offsets", "absolute": "target ids, converted to offsets"}
        return f"{self.size}" + (f", d2t as {spelling[self.map_kind]}" if self.map_kind else "")


def map_kind(
    d2t: Sequence[int], target_vocab_size: int, kept: Sequence[int] | None = None
) -> MapKind | None:
    """Which reading of d2t is a map into the target's vocabulary; None: neither.

    Args:
        d2t: Vd integers.
        target_vocab_size: V.
        kept: the target ids that `t2d` marks, ascending; decides where both readings are maps.
    """
    readings: dict[MapKind, list[int]] = {"offset": target_ids(d2t, "offset"), "absolute": list(d2t)}
    maps = {kind: ids for kind, ids in readings.items() if _is_map(ids, target_vocab_size)}
    for kind, ids in maps.items():
        if kept is not None and ids == list(kept):
            return kind
    return next(iter(maps), None)


def target_ids(d2t: Sequence[int], kind: MapKind) -> list[int]:
    if kind == "absolute":
        return list(d2t)
    return [draft_id + offset for draft_id, offset in enumerate(d2t)]


def _is_map(ids: Sequence[int], target_vocab_size: int) -> bool:
    in_range = bool(ids) and ids[0] >= 0 and ids[-1] < target_vocab_size
    return in_range and all(a < b for a, b in pairwise(ids))
