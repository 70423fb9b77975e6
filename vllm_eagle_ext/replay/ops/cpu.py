# SPDX-License-Identifier: Apache-2.0
"""The operation on a CPU, by vLLM's C++ kernels.

vLLM's kernel of the slot scheme loads a request's state from one column of its row of page numbers and
stores the state after row t into column t. A row of scratch pages with the checkpoint in a column
behind the last row therefore verifies without touching the checkpoint; a row of the page to write, with
the checkpoint behind it, commits. Both run the slot scheme's own arithmetic, in its order.

The kernel works in the pages themselves and knows no null page: each request needs a scratch page of its
own, and padding is left out before it is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from vllm import _custom_ops as ops

from vllm_eagle_ext.replay.ops.types import NULL_PAGE, Align, Batch, Gating, Pages, Plan, Rows


class Step(NamedTuple):
    """A batch as the C++ kernel wants it: made once a step, read by every layer. Built with numpy,
    whose small operations cost a fraction of torch's."""

    batch: Batch
    active: np.ndarray  # [R]: the requests of the batch that are not padding
    slots: np.ndarray  # [R]
    request: np.ndarray  # [N]: request of each row
    offset: np.ndarray  # [N]: place of each row in its request
    row_places: tuple[torch.Tensor, torch.Tensor]  # [N] int64 each: page and place of each record
    starts: torch.Tensor  # [R + 1] int32
    table: torch.Tensor  # [R, T + 1] int32: scratch, .., scratch, slot
    from_last: torch.Tensor  # [R] int32: T + 1, that is: load from the last column
    pages: torch.Tensor  # [R] int32: `slots` for vLLM's convolution
    neutral: torch.Tensor  # [R] int32 ones: windows start at their first column


def prepare(batch: Batch, rows_per_request: int) -> Step:
    """`rows_per_request`: T. Rows of padding, if there are any, must stand behind all others."""
    assert batch.scratch is not None
    active = np.flatnonzero(batch.slots.numpy() > NULL_PAGE)
    slots, scratch = batch.slots.numpy()[active], batch.scratch.numpy()[active]
    lengths = np.diff(batch.starts.numpy())[active]
    starts = _starts(lengths)
    request = np.repeat(np.arange(len(active)), lengths)
    offset = np.arange(len(request)) - starts[request]
    table = np.repeat(scratch[:, None], rows_per_request + 1, axis=1)
    table[:, -1] = slots
    return Step(
        batch, active, slots, request, offset,
        _int64(slots[request], offset), torch.from_numpy(starts), *_from_last(table),
        torch.from_numpy(slots), torch.ones(len(slots), dtype=torch.int32),
    )  # fmt: skip


def _starts(lengths: np.ndarray) -> np.ndarray:
    """[R] -> [R + 1] int32."""
    starts = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _from_last(table: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """The table, and what makes the kernel load each state from its last column."""
    columns = np.full(len(table), table.shape[1], dtype=np.int32)
    return torch.from_numpy(table), torch.from_numpy(columns)


def _int64(*arrays: np.ndarray) -> Any:
    return tuple(torch.from_numpy(array.astype(np.int64)) for array in arrays)


def verify(rows: Rows, gating: Gating, pages: Pages, step: Step, out: torch.Tensor) -> None:
    """Outputs of all rows into `out` [N, HV, DV], their records into the pages; states stay."""
    count = len(step.request)
    if count < len(out):
        rows = Rows(*(part[:count] for part in rows))
    record = [rows.key.flatten(1), rows.value.flatten(1), rows.a, rows.b]
    pages.records.index_put_(step.row_places, torch.cat(record, dim=-1))
    out[:count] = _recur(rows, gating, pages.state, step.table, step.from_last, step.starts)


def plan(
    batch: Batch,
    num_sampled: torch.Tensor,  # [requests of the whole batch] int32
    rows_of: torch.Tensor | None,  # [R] int32: row of the whole batch of each request
    align: Align | None,
    out: Plan,
) -> None:
    """At least one row is committed: the first row of a request is always a token of its text, also
    where nothing was sampled (the last token of a prompt, run as a verify row)."""
    slots = batch.slots.numpy()
    everywhere = np.arange(len(slots)) if rows_of is None else rows_of.numpy()
    sampled = num_sampled.numpy()[everywhere]
    is_active = slots > NULL_PAGE
    lengths = np.minimum(np.maximum(sampled, 1), np.diff(batch.starts.numpy())) * is_active
    out_lengths, final, boundary, boundary_lengths = (part.numpy() for part in out)
    out_lengths[:], final[:] = lengths, slots
    boundary[:], boundary_lengths[:] = NULL_PAGE, 0
    if align is None:
        return
    size, table = align.block_size, align.block_table.numpy()[everywhere]
    computed = align.num_computed.numpy()[everywhere]
    final[:] = _page_at(table, np.maximum(computed + lengths - 1, 0) // size) * is_active
    to_edge = size - computed % size
    # Rows that end at the edge: the final page is the edge's.
    crosses = (lengths > to_edge) & is_active
    boundary[:] = _page_at(table, (computed + to_edge) // size - 1) * crosses
    boundary_lengths[:] = to_edge * crosses


def _page_at(table: np.ndarray, column: np.ndarray) -> np.ndarray:
    """table [R, columns], column [R] -> [R]."""
    return table[np.arange(len(column)), np.minimum(column, table.shape[1] - 1)]


class Commit:
    """Applies the accepted rows, layer by layer."""

    def __init__(self, layers: Sequence[tuple[Pages, Gating]], history: int) -> None:
        """`history`: W - 1, the inputs that the convolution looks back on."""
        self._layers = tuple(layers)
        self._history = history

    def __call__(self, step: Step, plan: Plan) -> None:
        """Per request: state and window after `plan.lengths` rows, and at the boundary."""
        lengths = plan.lengths.numpy()[step.active]
        kept = step.offset < lengths[step.request]
        places = tuple(torch.from_numpy(part.numpy()[kept]) for part in step.row_places)
        starts = torch.from_numpy(_starts(lengths))
        table, from_last = _from_last(_commit_table(step, plan, lengths))
        windows = _windows(step, plan, lengths, self._history)
        for pages, gating in self._layers:
            rows = _rows(pages.records[places], pages.state)
            _recur(rows, gating, pages.state, table, from_last, starts)
            for source, column, target, place in windows:
                pages.conv[target, :, place] = pages.conv[source, :, column]


def _commit_table(step: Step, plan: Plan, lengths: np.ndarray) -> np.ndarray:
    """[R, longest + 1] int32: the final page, in which the kernel works in place, but the boundary's
    where its state is reached and, last, the slot."""
    table = np.repeat(plan.final.numpy()[step.active][:, None], lengths.max() + 1, axis=1)
    boundary = plan.boundary.numpy()[step.active]
    crossing = np.flatnonzero(boundary > NULL_PAGE)
    table[crossing, plan.boundary_lengths.numpy()[step.active][crossing] - 1] = boundary[crossing]
    table[:, -1] = step.slots
    return table


_Window = tuple[torch.Tensor, ...]  # page and columns to read, page and columns to write


def _windows(step: Step, plan: Plan, lengths: np.ndarray, history: int) -> list[_Window]:
    """Boundary's before final's: the final page may be the one that is read."""
    boundary, final = (part.numpy()[step.active] for part in (plan.boundary, plan.final))
    at_edge = plan.boundary_lengths.numpy()[step.active]
    crossing = np.flatnonzero(boundary > NULL_PAGE)
    moving = np.flatnonzero((lengths > 1) | (final != step.slots))  # others are where they belong
    moves = [(crossing, at_edge, boundary), (moving, lengths, final)]
    places = np.arange(history)
    return [
        _int64(
            step.slots[of][:, None], (length[of] - 1)[:, None] + places, page[of][:, None], places[None]
        )
        for of, length, page in moves
        if len(of)
    ]


def _rows(record: torch.Tensor, state: torch.Tensor) -> Rows:
    """record [n, H*DK + HV*DV + 2*HV]. The query matters to outputs alone: the key stands in for it."""
    heads, value_dim, key_dim = state.shape[1:]
    key_heads = (record.shape[1] - heads * (value_dim + 2)) // key_dim
    sizes = [key_heads * key_dim, heads * value_dim, heads, heads]
    key, value, a, b = record.split(sizes, dim=-1)
    key = key.unflatten(-1, (key_heads, key_dim))
    value = value.unflatten(-1, (heads, value_dim))
    return Rows(key, key, value, a, b)


def _recur(
    rows: Rows,
    gating: Gating,
    state: torch.Tensor,  # [P, HV, DV, DK]; the kernel reads a page's bytes as [HV, DK, DV]
    table: torch.Tensor,  # [R, columns] int32
    from_last: torch.Tensor,  # [R] int32
    starts: torch.Tensor,  # [R + 1] int32
) -> torch.Tensor:  # [N, HV, DV]
    pages, heads, value_dim, key_dim = state.shape
    return ops.fused_sigmoid_gating_delta_rule_update_spec_cpu(
        A_log=gating.A_log,
        dt_bias=gating.dt_bias,
        q=rows.query,
        k=rows.key,
        v=rows.value,
        a=rows.a.contiguous(),  # the kernel knows strides of the other three
        b=rows.b.contiguous(),
        initial_state_source=state.view(pages, heads, key_dim, value_dim),
        spec_state_indices=table,
        num_accepted_tokens=from_last,
        cu_seqlens=starts,
        use_qk_l2norm_in_kernel=True,
    )
