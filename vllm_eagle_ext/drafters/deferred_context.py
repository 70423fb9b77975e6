# SPDX-License-Identifier: Apache-2.0
"""Rows of the target whose keys and values a sleeping draft has not written into its cache yet.

Each row is a token of a request: the target's hidden states, the token behind it, its position and its
place in the draft's cache. All stay on the device, in a buffer that is allocated with the model; what
the host knows of a row is whose it is. A row whose blocks its request has lost is written nowhere, and
of several rows with one place the last one alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from vllm.utils.torch_utils import async_tensor_h2d

from vllm_eagle_ext.drafters.row_owners import Owner, RowOwners, Standing

_NOWHERE = -1  # vLLM's, for a row that is not written


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRows:
    """What a draft makes keys and values of, and where it puts them."""

    states: torch.Tensor  # [rows, width]
    next_tokens: torch.Tensor  # [rows]
    positions: torch.Tensor  # [rows]
    places: torch.Tensor  # [rows], -1 for none


Fill = Callable[[ContextRows], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """One row per request of a step, as the target's pass left them on the device."""

    states: Sequence[torch.Tensor]  # per aux layer [>= rows, Ht]
    next_tokens: torch.Tensor  # [rows], those that the step sampled
    positions: torch.Tensor  # [rows]
    places: torch.Tensor  # [rows]
    owners: Sequence[Owner]  # [rows]


class DeferredContext:
    """Keeps rows until there is no room for a step, or until they are asked for.

    Args:
        rows: how many fit, at least those of one step.
        width: of a row's hidden states, all aux layers side by side.
        dtype: of the target's hidden states.
    """

    def __init__(self, rows: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.states = torch.zeros(rows, width, dtype=dtype, device=device)
        self._next_tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self._positions = torch.zeros(rows, dtype=torch.int64, device=device)
        self._places = torch.zeros(rows, dtype=torch.int64, device=device)
        self._owners = RowOwners()

    def __len__(self) -> int:
        return len(self._owners)

    def has_room(self, rows: int) -> bool:
        return len(self) + rows <= len(self.states)

    def keep(self, step: StepRows) -> None:
        """Copy a step's rows behind those that are here; `has_room` must be true of them."""
        first, end = len(self), len(self) + len(step.owners)
        column = 0
        for states in step.states:
            width = states.shape[-1]
            self.states[first:end, column : column + width] = states[: end - first]
            column += width
        self._next_tokens[first:end] = step.next_tokens
        self._positions[first:end] = step.positions
        self._places[first:end] = step.places
        self._owners.add(step.owners)

    def has_rows_of(self, requests: Iterable[str]) -> bool:
        return self._owners.has_any(requests)

    def flush(self, stand: Callable[[Owner], Standing], fill: Fill) -> None:
        """Hand over in one pass the rows that can be written, and forget all but those that wait.

        What becomes of a row is decided on the host, and nothing waits for the device: a row that is not
        written goes through the pass all the same, to no place.

        Args:
            stand: what becomes of a row.
            fill: writes rows into the draft's cache.
        """
        count, standings = len(self), self._owners.standings(stand)
        left_out = [standing is not Standing.WRITTEN for standing in standings]
        if not all(left_out):
            places = _last_ones(self._places[:count])
            if any(left_out):
                lost = async_tensor_h2d(left_out, places.device, torch.bool)
                places = places.masked_fill(lost, _NOWHERE)
            rows = ContextRows(
                states=self.states[:count],
                next_tokens=self._next_tokens[:count],
                positions=self._positions[:count],
                places=places,
            )
            fill(rows)
        self._retain([row for row, standing in enumerate(standings) if standing is Standing.WAITING])

    def _retain(self, rows: list[int]) -> None:
        self._owners.retain(rows)
        if not rows:
            return
        indices = async_tensor_h2d(rows, self.states.device, torch.int64)
        for buffer in (self.states, self._next_tokens, self._positions, self._places):
            buffer[: len(rows)] = buffer[indices]


def _last_ones(places: torch.Tensor) -> torch.Tensor:  # [rows] -> [rows]
    """Send rows nowhere whose place a later row has: writes of one pass have no order."""
    ordered, order = places.sort(stable=True)
    overtaken = torch.zeros_like(places, dtype=torch.bool)
    overtaken[order[:-1]] = ordered[:-1] == ordered[1:]
    return places.masked_fill(overtaken, _NOWHERE)
