# SPDX-License-Identifier: Apache-2.0
"""The operation in plain PyTorch, row by row, to compare the others with.

The gated delta rule, Yang et al., "Gated Delta Networks" (arXiv 2412.06464), equation 10, transposed:

    S_t = S_{t-1} exp(g_t) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T,    o_t = S_t q_t

with S [DV, DK], g = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b), q and k of unit length,
q further divided by sqrt(DK).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import softplus

from vllm_eagle_ext.replay.ops.types import (
    NULL_BLOCK,
    Align,
    Batch,
    CommitPlan,
    Gating,
    Layer,
    Rows,
    StateCache,
)

__all__ = ["Commit", "plan", "verify"]

EPSILON = 1e-6


def _unit(rows: torch.Tensor) -> torch.Tensor:
    return rows * torch.rsqrt((rows * rows).sum(-1, keepdim=True) + EPSILON)


def _reference_step(state: torch.Tensor, rows: Rows, gating: Gating) -> torch.Tensor:
    """Compute the state [HV, DV, DK] after one row, `rows` being without their first dimension."""
    group = state.shape[0] // rows.key.shape[0]
    key = _unit(rows.key.to(state.dtype)).repeat_interleave(group, 0)  # [HV, DK]
    value, a, b = (tensor.to(state.dtype) for tensor in (rows.value, rows.a, rows.b))
    A_log, dt_bias = (tensor.to(state.dtype) for tensor in gating)
    state = state * torch.exp(-A_log.exp() * softplus(a + dt_bias, threshold=20.0))[:, None, None]
    written = torch.sigmoid(b)[:, None] * (value - (state * key[:, None]).sum(-1))
    return state + written[:, :, None] * key[:, None]


def _record(rows: Rows) -> torch.Tensor:
    """Return all inputs but the query, flat: [record_width]."""
    return torch.cat([tensor.flatten() for tensor in rows[1:]])


def _recorded(record: torch.Tensor, state: torch.Tensor) -> Rows:
    HV, DV, DK = state.shape
    keys = len(record) - HV * DV - 2 * HV
    key, value, a, b = record.split([keys, HV * DV, HV, HV])
    return Rows(key, key.view(-1, DK), value.view(HV, DV), a, b)


def _active(batch: Batch) -> list[tuple[int, int, int, int]]:
    """List request, state block, first row and number of rows, of those that are no padding."""
    blocks, starts = batch.state_blocks.tolist(), batch.starts.tolist()
    ranges = zip(blocks, starts[:-1], starts[1:], strict=True)
    return [
        (i, block, s, e - s) for i, (block, s, e) in enumerate(ranges) if block > NULL_BLOCK and e > s
    ]


def verify(
    rows: Rows,
    gating: Gating,
    cache: StateCache,
    batch: Batch,
    out: torch.Tensor,
    dtype: torch.dtype = torch.float64,
) -> None:
    """Write the outputs of all rows from the committed states to `out` [N, HV, DV]; record the rows."""
    for _, block, first, count in _active(batch):
        state = cache.state[block].to(dtype)
        for i in range(count):
            row = Rows(*(tensor[first + i] for tensor in rows))
            state = _reference_step(state, row, gating)
            query = _unit(row.query.to(dtype)) * row.query.shape[-1] ** -0.5
            query = query.repeat_interleave(state.shape[0] // len(query), 0)
            out[first + i] = (state * query[:, None]).sum(-1).to(out.dtype)
            cache.records[block, i] = _record(row)


def plan(
    batch: Batch,
    num_sampled: torch.Tensor,
    indices: torch.Tensor | None,
    align: Align | None,
    out: CommitPlan,
) -> None:
    """Turn the sampled counts [requests of the whole batch] into what `Commit` writes.

    indices [R]: where a request stands in the whole batch, None if in the same place.
    """
    for tensor in out:
        tensor.fill_(NULL_BLOCK)
    for group in range(batch.groups):
        table = None if align is None else align.tables.tensors[group]
        _reference_plan(batch.of_group(group), num_sampled, indices, align, table, out.of_group(group))


def _reference_plan(
    batch: Batch,
    num_sampled: torch.Tensor,
    indices: torch.Tensor | None,
    align: Align | None,
    block_table: torch.Tensor | None,
    out: CommitPlan,
) -> None:
    for i, block, _, count in _active(batch):
        request = i if indices is None else int(indices[i])
        rows_to_commit = min(max(int(num_sampled[request]), 1), count)
        out.rows_to_commit[i], out.final[i] = rows_to_commit, block
        if align is not None and block_table is not None:
            size, table = align.block_size, block_table[request]
            before = int(align.num_computed[request])
            after = before + rows_to_commit
            out.final[i] = table[min((after - 1) // size, len(table) - 1)]
            end = (before // size + 1) * size
            if after > end and table[end // size - 1] > NULL_BLOCK:
                out.block_end[i], out.block_end_lengths[i] = table[end // size - 1], end - before


class Commit:
    """Writes what a plan says, in all layers."""

    def __init__(
        self,
        layers: Sequence[Layer],
        history: int,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        """Keep the layers, as `types.CommitKernel` does."""
        self._layers, self._history, self._dtype = tuple(layers), history, dtype

    def __call__(self, batch: Batch, plan: CommitPlan) -> None:
        """Write, as `types.CommitKernel` does."""
        for cache, gating, group in self._layers:
            self._apply(cache, gating, batch.of_group(group), plan.of_group(group))

    def _apply(self, cache: StateCache, gating: Gating, batch: Batch, plan: CommitPlan) -> None:
        count, final, block_end, block_end_lengths = (tensor.tolist() for tensor in plan)
        for i, block, *_ in _active(batch):
            targets = ((block_end[i], block_end_lengths[i]), (final[i], count[i]))
            wanted = [(to, n) for to, n in targets if to > NULL_BLOCK and n > 0 and count[i]]
            results = [(to, *self._after(cache, gating, block, n)) for to, n in wanted]
            for target, state, conv in results:
                cache.state[target] = state.to(cache.state.dtype)
                cache.conv[target, :, : self._history] = conv

    def _after(
        self, cache: StateCache, gating: Gating, block: int, length: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        state = cache.state[block].to(self._dtype)
        for record in cache.records[block, :length]:
            state = _reference_step(state, _recorded(record, state), gating)
        return state, cache.conv[block, :, length - 1 : length - 1 + self._history].clone()
