# SPDX-License-Identifier: Apache-2.0
"""Whose the rows of a deferred context are, and whether their requests still hold the rows' blocks.

A request that finished, or was preempted, has given its blocks back, and others may have written into
them since. What the V1 runner knows tells it, not its notices, some of which a drafter never sees: its
`CachedRequestState` of a name, and that state's lists of blocks.

- Finished: the runner has no state of the name. Come again under its name: it has another state, also
  where both happen in one step. Its rows are lost.
- In the step, with the lists of when the row was kept: the lists only grow, the blocks are its own.
- Not in the step: it may wait or be preempted, which the runner does not know: its rows wait with it.
- Continued by streaming input (`_update_streaming_request`): the state stays, the lists are replaced by
  the scheduler's, which has freed nothing but what lies behind a window and has the null block there.
  The old ids are a prefix of the new ones, the tokens below `num_computed_tokens` are those of before:
  its rows are written.
- Resumed after a preemption: the state stays, the lists are replaced, and `num_computed_tokens` starts
  from 0, since nothing is found in a prefix cache. With other blocks the rows are lost, and the
  draft has run over their tokens anew or will. Where the old blocks have come back in their old order,
  the places are the request's own: rows that are not computed anew yet are left out, those that are
  hold what the draft has written there.

A draft sleeps on a CPU alone, where vLLM has no async scheduling. With it a row may come from a step
that was under way when its turn ended, whose token is dropped: replaced lists would prove nothing.

With prefix caching a block that was given back may be read again by another request, so that its rows
are written too: `written`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

_NULL_BLOCK = 0  # vLLM's, in the place of a block that was freed


class Standing(Enum):
    """What becomes of a row."""

    WRITTEN = auto()
    WAITING = auto()  # with its request, for a step of that
    LOST = auto()  # its place is not its request's any more, or of no use


@dataclass(frozen=True, slots=True)
class Owner:
    """The request of a row, as it was when the row was kept."""

    request: str
    state: Any  # the runner's CachedRequestState
    blocks: Sequence[list[int]]  # the state's own, per KV-cache group; they grow in place
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
        self._go_on: dict[int, bool] = {}  # lists that were replaced, by identity

    def stand(self, owner: Owner) -> Standing:
        state = self._requests.get(owner.request)
        if state is None or state is not owner.state or not self._has_its_blocks(owner):
            return Standing.LOST
        if self._window is not None and owner.position <= state.num_computed_tokens - self._window:
            return Standing.LOST
        return Standing.WRITTEN if owner.request in self._in_step else Standing.WAITING

    def _has_its_blocks(self, owner: Owner) -> bool:
        state = owner.state
        if state.block_ids is owner.blocks:
            return True
        if owner.position >= state.num_computed_tokens:
            return False
        key = id(owner.blocks)  # the rows of one request share it
        if key not in self._go_on:
            self._go_on[key] = all(map(_continues, owner.blocks, state.block_ids))
        return self._go_on[key]


def _continues(old: list[int], new: list[int]) -> bool:
    """Whether a list begins with another one's blocks, but for those that were freed behind a window."""
    return len(old) <= len(new) and all(
        is_now in (was, _NULL_BLOCK) for was, is_now in zip(old, new, strict=False)
    )
