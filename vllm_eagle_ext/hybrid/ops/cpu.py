# SPDX-License-Identifier: Apache-2.0
"""The operation on a CPU, by vLLM's C++ kernels.

vLLM's kernel of the slot scheme loads a request's state from one column of its row of page numbers and
stores the state after row t into column t. A row of scratch pages with the checkpoint in a column
behind the last row therefore verifies without touching the checkpoint; a row with the page to write in
column `length - 1` commits. Both run the slot scheme's own arithmetic, in its order.

The kernel works in the pages themselves and knows no null page: each request needs a scratch page of its
own, and padding is left out before it is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from vllm import _custom_ops as ops

from vllm_eagle_ext.hybrid.ops.types import NULL_PAGE, Align, Batch, Gating, Pages, Plan, Rows


class Step(NamedTuple):
    """A batch as the C++ kernel wants it: made once a step, read by every layer."""

    batch: Batch
    slots: torch.Tensor  # [R] int64, requests that are not padding
    scratch: torch.Tensor  # [R] int32
    active: torch.Tensor  # [R] int64: which requests of the batch these are
    request: torch.Tensor  # [N] int64: request of each row
    offset: torch.Tensor  # [N] int64: place of each row in its request
    row_pages: torch.Tensor  # [N] int64: page of each row's request
    starts: torch.Tensor  # [R + 1] int32
    table: torch.Tensor  # [R, T + 1] int32: scratch, .., scratch, slot
    from_last: torch.Tensor  # [R] int32: T + 1, that is: load from the last column


def prepare(batch: Batch, rows_per_request: int) -> Step:
    """`rows_per_request`: T. Rows of padding, if there are any, must stand behind all others."""
    assert batch.scratch is not None
    active = (batch.slots > NULL_PAGE).nonzero().flatten()
    slots, scratch = batch.slots[active].long(), batch.scratch[active]
    lengths = batch.starts.diff()[active]
    starts = torch.zeros(len(active) + 1, dtype=torch.int32)
    torch.cumsum(lengths, 0, out=starts[1:])
    request = torch.arange(len(active)).repeat_interleave(lengths)
    offset = torch.arange(len(request)) - starts[request]
    table = scratch[:, None].repeat(1, rows_per_request + 1)
    table[:, -1] = slots
    from_last = torch.full((len(active),), rows_per_request + 1, dtype=torch.int32)
    row_pages = slots[request]
    return Step(batch, slots, scratch, active, request, offset, row_pages, starts, table, from_last)


def verify(rows: Rows, gating: Gating, pages: Pages, step: Step, out: torch.Tensor) -> None:
    """Outputs of all rows into `out` [N, HV, DV], their records into the pages; states stay."""
    count = len(step.request)
    rows = Rows(*(part[:count] for part in rows))
    record = [rows.key.flatten(1), rows.value.flatten(1), rows.a, rows.b]
    pages.records.index_put_((step.row_pages, step.offset), torch.cat(record, dim=-1))
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
    everywhere = torch.arange(len(batch.slots)) if rows_of is None else rows_of.long()
    is_active = batch.slots > NULL_PAGE
    lengths = torch.minimum(num_sampled[everywhere].clamp(min=1), batch.starts.diff()) * is_active
    out.lengths.copy_(lengths)
    out.final.copy_(batch.slots)
    out.boundary.fill_(NULL_PAGE)
    out.boundary_lengths.zero_()
    if align is None:
        return
    size, table = align.block_size, align.block_table[everywhere]
    computed = align.num_computed[everywhere]
    out.final.copy_(_page_at(table, (computed + lengths - 1).clamp(min=0) // size) * is_active)
    to_boundary = size - computed % size
    # Rows that end at the boundary: the final page is the boundary's.
    crosses = (lengths > to_boundary) & is_active
    out.boundary.copy_(_page_at(table, (computed + to_boundary) // size - 1) * crosses)
    out.boundary_lengths.copy_(to_boundary * crosses)


def _page_at(table: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """table [R, columns] int32, column [R] -> [R] int32."""
    column = column.clamp(max=table.shape[1] - 1).long()
    return table.gather(1, column[:, None])[:, 0]


class Commit:
    """Applies the accepted rows, layer by layer."""

    def __init__(self, layers: Sequence[tuple[Pages, Gating]], history: int) -> None:
        """`history`: W - 1, the inputs that the convolution looks back on."""
        self._layers = tuple(layers)
        self._history = history

    def __call__(self, step: Step, plan: Plan) -> None:
        """Per request: state and window after `plan.lengths` rows, and at the boundary."""
        lengths = plan.lengths[step.active]
        kept = step.offset < lengths[step.request]
        offset, row_pages = step.offset[kept], step.row_pages[kept]
        starts = torch.zeros_like(step.starts)
        torch.cumsum(lengths, 0, out=starts[1:])
        table = _commit_table(step, plan, lengths)
        from_last = torch.full_like(step.from_last, table.shape[1])
        windows = _windows(step, plan, lengths, self._history)
        for pages, gating in self._layers:
            rows = _rows(pages.records[row_pages, offset], pages.state)
            _recur(rows, gating, pages.state, table, from_last, starts)
            for source, column, target, places in windows:
                pages.conv[target, :, places] = pages.conv[source, :, column]


def _commit_table(step: Step, plan: Plan, lengths: torch.Tensor) -> torch.Tensor:
    """[R, longest + 1] int32: scratch, but the boundary's page, the final page and, last, the slot."""
    table = step.scratch[:, None].repeat(1, int(lengths.max()) + 1)
    boundary, place = plan.boundary[step.active], plan.boundary_lengths[step.active].long() - 1
    crossing = (boundary > NULL_PAGE).nonzero().flatten()
    table[crossing, place[crossing]] = boundary[crossing]
    table[torch.arange(len(lengths)), lengths.long() - 1] = plan.final[step.active]
    table[:, -1] = step.slots
    return table


_Window = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _windows(step: Step, plan: Plan, lengths: torch.Tensor, history: int) -> list[_Window]:
    """Boundary's before final's: the final page may be the one that is read."""
    places = torch.arange(history)
    boundary = plan.boundary[step.active].long()
    crossing = (boundary > NULL_PAGE).nonzero().flatten()
    moves = []
    if len(crossing):
        first = plan.boundary_lengths[step.active][crossing].long() - 1
        moves.append((crossing, first, boundary[crossing]))
    moves.append((torch.arange(len(lengths)), lengths.long() - 1, plan.final[step.active].long()))
    return [
        (step.slots[of][:, None], first[:, None] + places, to[:, None], places[None])
        for of, first, to in moves
    ]


def _rows(record: torch.Tensor, state: torch.Tensor) -> Rows:
    """record [n, H*DK + HV*DV + 2*HV]. The query matters to outputs alone: the key stands in for it."""
    heads, value_dim, key_dim = state.shape[1:]
    key_heads = (record.shape[1] - heads * (value_dim + 2)) // key_dim
    sizes = [key_heads * key_dim, heads * value_dim, heads, heads]
    key, value, a, b = record.split(sizes, dim=-1)
    key = key.unflatten(-1, (key_heads, key_dim)).contiguous()
    value = value.unflatten(-1, (heads, value_dim)).contiguous()
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
