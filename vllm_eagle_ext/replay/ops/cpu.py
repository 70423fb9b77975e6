# SPDX-License-Identifier: Apache-2.0
"""The operation on a CPU, by vLLM's C++ kernels.

vLLM's kernel of the per-token scheme (one state block per draft token) loads a request's state from one
column of its row of block ids and stores the state after row t into column t. A row of scratch blocks
with the committed state in a column after the last row therefore verifies without touching that state;
a row of the block to write, with the committed state after it, commits. Both run the per-token scheme's
own arithmetic, in its order.

The kernel works in the blocks themselves and knows no null block: each request needs a scratch block of
its own, and padding is left out before it is called.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from vllm import _custom_ops as ops

from vllm_eagle_ext.replay.ops.types import (
    NULL_BLOCK,
    Align,
    Batch,
    BlockPlaces,
    BlockTables,
    CommitPlan,
    Gating,
    HostTables,
    Layer,
    Rows,
    StateCache,
)

__all__ = ["Commit", "gather_blocks", "plan", "prepare", "verify"]


def verify(rows: Rows, gating: Gating, cache: StateCache, batch: Batch, out: torch.Tensor) -> None:
    """Write the outputs of all rows to `out` [N, HV, DV], their records to the blocks; states stay."""
    (tables,) = batch.host_tables
    count = len(tables.request)
    if count < len(out):
        rows = Rows(*(part[:count] for part in rows))
    record = [rows.key.flatten(1), rows.value.flatten(1), rows.a, rows.b]
    cache.records.index_put_(tables.row_places, torch.cat(record, dim=-1))
    out[:count] = _recur(rows, gating, cache.state, tables.columns, tables.from_last, tables.starts)


def prepare(batch: Batch, rows_per_request: int) -> Batch:
    """Add the tables of vLLM's C++ kernel to a batch, once a step for all layers. With numpy: its small
    operations cost a fraction of torch's.

    Args:
        rows_per_request: T. Rows of padding, if there are any, must stand after all others.
    """
    groups = (batch.of_group(group) for group in range(batch.groups))
    return batch._replace(host_tables=tuple(_tables_of(each, rows_per_request) for each in groups))


def _tables_of(batch: Batch, rows_per_request: int) -> HostTables:
    assert batch.scratch is not None
    active = np.flatnonzero(batch.state_blocks.numpy() > NULL_BLOCK)
    blocks, scratch = batch.state_blocks.numpy()[active], batch.scratch.numpy()[active]
    lengths = np.diff(batch.starts.numpy())[active]
    starts = _row_starts(lengths)
    request = np.repeat(np.arange(len(active)), lengths)
    offset = np.arange(len(request)) - starts[request]
    columns = np.repeat(scratch[:, None], rows_per_request + 1, axis=1)
    columns[:, -1] = blocks
    return HostTables(
        active, blocks, request, offset,
        (_as_int64(blocks[request]), _as_int64(offset)), torch.from_numpy(starts),
        *_from_last_column(columns),
        torch.from_numpy(blocks), torch.ones(len(blocks), dtype=torch.int32),
    )  # fmt: skip


def _row_starts(lengths: np.ndarray) -> np.ndarray:
    """Return the first row of each request, then the number of rows: [R] -> [R + 1] int32."""
    starts = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _from_last_column(columns: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the table, and what makes the kernel load each state from its last column."""
    last = np.full(len(columns), columns.shape[1], dtype=np.int32)
    return torch.from_numpy(columns), torch.from_numpy(last)


def _as_int64(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.int64))


def gather_blocks(tables: BlockTables, places: BlockPlaces, out: torch.Tensor) -> None:
    """Fill `out` [columns, G, R]: the state block of each request in each group's table, then the blocks
    of the columns after it; NULL_BLOCK after the last request."""
    count, result = places.requests, out.numpy()
    everywhere = np.arange(count) if places.indices is None else places.indices.numpy()
    first = np.zeros(count, dtype=np.int64)
    if places.seq_lens is not None:
        first = np.maximum(places.seq_lens.numpy()[everywhere] - 1, 0) // places.block_size
    for group, table in enumerate(tables.tensors):
        for column in range(len(result)):
            result[column, group, :count] = table.numpy()[everywhere, first + column]
    result[..., count:] = NULL_BLOCK


def plan(
    batch: Batch,
    num_sampled: torch.Tensor,  # [requests of the whole batch] int32
    indices: torch.Tensor | None,  # [R] int32: where a request stands there; None: in its place
    align: Align | None,
    out: CommitPlan,
) -> None:
    """Plan what each group commits: at least one row. The first row of a request is always a token of
    its text, also where nothing was sampled (V2's chunk of one token inside a prompt)."""
    for group in range(batch.groups):
        _plan_group(batch.of_group(group), num_sampled, indices, align, group, out.of_group(group))


def _plan_group(
    batch: Batch,
    num_sampled: torch.Tensor,
    indices: torch.Tensor | None,
    align: Align | None,
    group: int,
    out: CommitPlan,
) -> None:
    blocks = batch.state_blocks.numpy()
    everywhere = np.arange(len(blocks)) if indices is None else indices.numpy()
    sampled = num_sampled.numpy()[everywhere]
    is_active = blocks > NULL_BLOCK
    count = np.minimum(np.maximum(sampled, 1), np.diff(batch.starts.numpy())) * is_active
    rows_to_commit, final, block_end, block_end_lengths = (part.numpy() for part in out)
    rows_to_commit[:], final[:] = count, blocks
    block_end[:], block_end_lengths[:] = NULL_BLOCK, 0
    if align is None:
        return
    size, table = align.block_size, align.tables.tensors[group].numpy()[everywhere]
    computed = align.num_computed.numpy()[everywhere]
    final[:] = _block_at(table, np.maximum(computed + count - 1, 0) // size) * is_active
    to_end = size - computed % size
    # Rows that go past the block's end. For those that end at it, the final block is that block.
    crosses = (count > to_end) & is_active
    block_end[:] = _block_at(table, (computed + to_end) // size - 1) * crosses
    block_end_lengths[:] = to_end * crosses


def _block_at(table: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Look each column up in its row of the table: table [R, columns], column [R] -> [R]."""
    return table[np.arange(len(column)), np.minimum(column, table.shape[1] - 1)]


class Commit:
    """Writes what a plan says, layer by layer."""

    def __init__(self, layers: Sequence[Layer], history: int) -> None:
        """Keep the layers, as `types.CommitKernel` does."""
        self._groups: dict[int, list[tuple[StateCache, Gating]]] = {}
        for cache, gating, group in layers:
            self._groups.setdefault(group, []).append((cache, gating))
        self._history = history

    def __call__(self, batch: Batch, plan: CommitPlan) -> None:
        """Write, as `types.CommitKernel` does."""
        for group, layers in self._groups.items():
            self._apply(layers, batch.host_tables[group], plan.of_group(group))

    def _apply(
        self, layers: list[tuple[StateCache, Gating]], tables: HostTables, plan: CommitPlan
    ) -> None:
        if not len(tables.active):
            return
        count = plan.rows_to_commit.numpy()[tables.active]
        kept = tables.offset < count[tables.request]
        places = tuple(torch.from_numpy(part.numpy()[kept]) for part in tables.row_places)
        starts = torch.from_numpy(_row_starts(count))
        columns, from_last = _from_last_column(_commit_columns(tables, plan, count))
        moves = _conv_moves(tables, plan, count, self._history)
        for cache, gating in layers:
            rows = _rows(cache.records[places], cache.state)
            _recur(rows, gating, cache.state, columns, from_last, starts)
            # Read before any is written: one of the blocks to write may be the one that is read.
            kept_inputs = [cache.conv[source, :, column] for source, column, _, _ in moves]
            for (_, _, target, place), inputs in zip(moves, kept_inputs, strict=True):
                cache.conv[target, :, place] = inputs


def _commit_columns(tables: HostTables, plan: CommitPlan, count: np.ndarray) -> np.ndarray:
    """Return the columns of blocks, [R, longest + 1] int32. Each is the final block, in which the kernel
    works in place, except two: the block at the block boundary, where its state is reached, and, last,
    the block that holds the committed state."""
    columns = np.repeat(plan.final.numpy()[tables.active][:, None], count.max() + 1, axis=1)
    block_end = plan.block_end.numpy()[tables.active]
    crossing = np.flatnonzero(block_end > NULL_BLOCK)
    lengths = plan.block_end_lengths.numpy()[tables.active]
    columns[crossing, lengths[crossing] - 1] = block_end[crossing]
    columns[:, -1] = tables.state_blocks
    return columns


_ConvMove = tuple[torch.Tensor, ...]  # block and columns to read, block and columns to write


def _conv_moves(
    tables: HostTables, plan: CommitPlan, count: np.ndarray, history: int
) -> list[_ConvMove]:
    """List the moves at the block boundary, and after the last committed row."""
    block_end, final = (part.numpy()[tables.active] for part in (plan.block_end, plan.final))
    end_lengths = plan.block_end_lengths.numpy()[tables.active]
    crossing = np.flatnonzero(block_end > NULL_BLOCK)
    moving = np.flatnonzero((count > 1) | (final != tables.state_blocks))  # others are in their place
    places = np.arange(history)
    return [
        tuple(
            _as_int64(array)
            for array in (
                tables.state_blocks[of][:, None],
                (length[of] - 1)[:, None] + places,
                block[of][:, None],
                places[None],
            )
        )
        for of, length, block in ((crossing, end_lengths, block_end), (moving, count, final))
        if len(of)
    ]


def _rows(record: torch.Tensor, state: torch.Tensor) -> Rows:
    """Split record [n, H*DK + HV*DV + 2*HV] into rows. The query matters only to outputs: the key stands
    in for it."""
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
    state: torch.Tensor,  # [P, HV, DV, DK]; the kernel reads a block's bytes as [HV, DK, DV]
    columns: torch.Tensor,  # [R, columns] int32: block ids
    from_last: torch.Tensor,  # [R] int32
    starts: torch.Tensor,  # [R + 1] int32
) -> torch.Tensor:  # [N, HV, DV]
    blocks, heads, value_dim, key_dim = state.shape
    return ops.fused_sigmoid_gating_delta_rule_update_spec_cpu(
        A_log=gating.A_log,
        dt_bias=gating.dt_bias,
        q=rows.query,
        k=rows.key,
        v=rows.value,
        a=rows.a.contiguous(),  # the kernel knows strides of the other three
        b=rows.b.contiguous(),
        initial_state_source=state.view(blocks, heads, key_dim, value_dim),
        spec_state_indices=columns,
        num_accepted_tokens=from_last,
        cu_seqlens=starts,
        use_qk_l2norm_in_kernel=True,
    )
