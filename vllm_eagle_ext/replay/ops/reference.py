# SPDX-License-Identifier: Apache-2.0
"""The operation in plain torch, row by row, to compare the others with.

The gated delta rule, Yang et al., "Gated Delta Networks" (arXiv 2412.06464), equation 10, transposed:

    S_t = S_{t-1} exp(g_t) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T,    o_t = S_t q_t

with S [DV, DK], g = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b), q and k of unit length,
q further divided by sqrt(DK).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import softplus

from vllm_eagle_ext.replay.ops.types import NULL_PAGE, Align, Batch, Gating, Pages, Plan, Rows

__all__ = ["Commit", "plan", "verify"]

EPSILON = 1e-6


def _unit(rows: torch.Tensor) -> torch.Tensor:
    return rows * torch.rsqrt((rows * rows).sum(-1, keepdim=True) + EPSILON)


def _step(state: torch.Tensor, rows: Rows, gating: Gating) -> torch.Tensor:
    """The state [HV, DV, DK] after one row, `rows` being without their first dimension."""
    group = state.shape[0] // rows.key.shape[0]
    key = _unit(rows.key.to(state.dtype)).repeat_interleave(group, 0)  # [HV, DK]
    value, a, b = (tensor.to(state.dtype) for tensor in (rows.value, rows.a, rows.b))
    A_log, dt_bias = (tensor.to(state.dtype) for tensor in gating)
    state = state * torch.exp(-A_log.exp() * softplus(a + dt_bias, threshold=20.0))[:, None, None]
    written = torch.sigmoid(b)[:, None] * (value - (state * key[:, None]).sum(-1))
    return state + written[:, :, None] * key[:, None]


def _record(rows: Rows) -> torch.Tensor:
    """[record_width]"""
    return torch.cat([tensor.flatten() for tensor in rows[1:]])


def _recorded(record: torch.Tensor, state: torch.Tensor) -> Rows:
    HV, DV, DK = state.shape
    keys = len(record) - HV * DV - 2 * HV
    key, value, a, b = record.split([keys, HV * DV, HV, HV])
    return Rows(key, key.view(-1, DK), value.view(HV, DV), a, b)


def _active(batch: Batch) -> list[tuple[int, int, int, int]]:
    """Request, page, first row and number of rows, of those that are no padding."""
    slots, starts = batch.slots.tolist(), batch.starts.tolist()
    ranges = zip(slots, starts[:-1], starts[1:], strict=True)
    return [(i, page, s, e - s) for i, (page, s, e) in enumerate(ranges) if page > NULL_PAGE and e > s]


def verify(
    rows: Rows,
    gating: Gating,
    pages: Pages,
    batch: Batch,
    out: torch.Tensor,
    dtype: torch.dtype = torch.float64,
) -> None:
    """Outputs of all rows from the checkpoint states, into `out` [N, HV, DV]; records the rows."""
    for _, page, first, count in _active(batch):
        state = pages.state[page].to(dtype)
        for i in range(count):
            row = Rows(*(tensor[first + i] for tensor in rows))
            state = _step(state, row, gating)
            query = _unit(row.query.to(dtype)) * row.query.shape[-1] ** -0.5
            query = query.repeat_interleave(state.shape[0] // len(query), 0)
            out[first + i] = (state * query[:, None]).sum(-1).to(out.dtype)
            pages.records[page, i] = _record(row)


def plan(
    batch: Batch,
    num_sampled: torch.Tensor,
    rows_of: torch.Tensor | None,
    align: Align | None,
    out: Plan,
) -> None:
    """Turns the sampled counts [requests of the whole batch] into what `Commit` writes.

    rows_of [R]: where a request stands in the whole batch, None if in the same place.
    """
    for tensor in out:
        tensor.fill_(NULL_PAGE)
    for i, page, _, count in _active(batch):
        request = i if rows_of is None else int(rows_of[i])
        length = min(max(int(num_sampled[request]), 1), count)
        out.lengths[i], out.final[i] = length, page
        if align is not None:
            size, table = align.block_size, align.block_table[request]
            before = int(align.num_computed[request])
            out.final[i] = table[min((before + length - 1) // size, len(table) - 1)]
            edge = (before // size + 1) * size
            if before + length > edge and table[edge // size - 1] > NULL_PAGE:
                out.boundary[i], out.boundary_lengths[i] = table[edge // size - 1], edge - before


class Commit:
    """Applies the accepted rows in all layers."""

    def __init__(
        self,
        layers: Sequence[tuple[Pages, Gating]],
        history: int,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        """`history`: W - 1, the inputs that the convolution looks back on."""
        self._layers, self._history, self._dtype = tuple(layers), history, dtype

    def __call__(self, batch: Batch, plan: Plan) -> None:
        """Per request: state and window after `plan.lengths` rows, and at the boundary."""
        lengths, final, boundary, boundary_lengths = (tensor.tolist() for tensor in plan)
        for i, page, *_ in _active(batch):
            targets = ((boundary[i], boundary_lengths[i]), (final[i], lengths[i]))
            wanted = [
                (target, length) for target, length in targets if target > NULL_PAGE and length > 0
            ]
            for pages, gating in self._layers if lengths[i] else ():
                results = [(target, *self._after(pages, gating, page, n)) for target, n in wanted]
                for target, state, window in results:
                    pages.state[target] = state.to(pages.state.dtype)
                    pages.conv[target, :, : self._history] = window

    def _after(
        self, pages: Pages, gating: Gating, page: int, length: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        state = pages.state[page].to(self._dtype)
        for record in pages.records[page, :length]:
            state = _step(state, _recorded(record, state), gating)
        return state, pages.conv[page, :, length - 1 : length - 1 + self._history].clone()
