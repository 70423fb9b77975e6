# SPDX-License-Identifier: Apache-2.0
"""Whose the rows of a deferred context are, and whether their requests still hold the rows' blocks.

A request that finished, or was preempted, has given its blocks back, and others may have written into
them since. What the V1 runner knows tells it, not its notices, some of which a drafter never sees: a
request that is resumed, or comes again under its old name, has another list of blocks. One that is in
the present step under the same list holds them. One that is not may wait or be preempted, which the
runner does not know: its rows wait with it.

With prefix caching a block that was given back may be read again by another request, so that its rows
are written too: `written`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any


class Standing(Enum):
    """What becomes of a row."""

    WRITTEN = auto()
    WAITING = auto()  # with its request, for a step of that
    LOST = auto()  # its place is not its request's any more, or of no use


@dataclass(frozen=True, slots=True)
class Owner:
    """The request of a row, as it was when the row was kept."""

    request: str
    blocks: Sequence[list[int]]  # the runner's own, per KV-cache group; it grows in place
    position: int


def written(_: Owner) -> Standing:
    """Write every row, whoever holds its block by now: the cache is the draft's alone."""
    return Standing.WRITTEN


class RowOwners:
    """The owners of all rows that are kept, in their order."""

    def __init__(self) -> None:
        self._owners: list[Owner] = []
        self._names: set[str] = set()

    def __len__(self) -> int:
        return len(self._owners)

    def add(self, owners: Iterable[Owner]) -> None:
        before = len(self._owners)
        self._owners.extend(owners)
        self._names.update(owner.request for owner in self._owners[before:])

    def has_any(self, requests: Iterable[str]) -> bool:
        return not self._names.isdisjoint(requests)

    def standings(self, stand: Callable[[Owner], Standing]) -> list[Standing]:
        return [stand(owner) for owner in self._owners]

    def retain(self, rows: Sequence[int]) -> None:
        """Forget all others."""
        owners = [self._owners[row] for row in rows]
        self._owners.clear()
        self._names.clear()
        self.add(owners)


class HeldBlocks:
    """Tells at one moment what becomes of each row.

    Args:
        requests: the runner's, by name; it keeps those that are preempted.
        in_step: names of the requests of the present step, whose blocks are surely theirs.
        window: tokens that the draft's layers attend to; None: all. vLLM frees blocks behind it.
    """

    def __init__(self, requests: Mapping[str, Any], in_step: Iterable[str], window: int | None) -> None:
        self._requests, self._in_step = requests, frozenset(in_step)
        self._window = window

    def stand(self, owner: Owner) -> Standing:
        state = self._requests.get(owner.request)
        if state is None or state.block_ids is not owner.blocks:
            return Standing.LOST
        if self._window is not None and owner.position <= state.num_computed_tokens - self._window:
            return Standing.LOST
        return Standing.WRITTEN if owner.request in self._in_step else Standing.WAITING
