# SPDX-License-Identifier: Apache-2.0
"""Makes the tables of a batch that vLLM's C++ kernel reads, once a step for all layers, with numpy: its
small operations cost a fraction of torch's.
"""

from __future__ import annotations

import numpy as np
import torch

from vllm_eagle_ext.replay.ops.types import NULL_BLOCK, Batch, HostTables


def prepare(batch: Batch, rows_per_request: int) -> Batch:
    """Add the tables to a batch; `rows_per_request`: T. Rows of padding, if there are any, must stand
    after all others."""
    groups = (batch.of_group(group) for group in range(batch.groups))
    return batch._replace(tables=tuple(_tables_of(one, rows_per_request) for one in groups))


def _tables_of(batch: Batch, rows_per_request: int) -> HostTables:
    assert batch.scratch is not None
    active = np.flatnonzero(batch.state_blocks.numpy() > NULL_BLOCK)
    blocks, scratch = batch.state_blocks.numpy()[active], batch.scratch.numpy()[active]
    lengths = np.diff(batch.starts.numpy())[active]
    starts = row_starts(lengths)
    request = np.repeat(np.arange(len(active)), lengths)
    offset = np.arange(len(request)) - starts[request]
    columns = np.repeat(scratch[:, None], rows_per_request + 1, axis=1)
    columns[:, -1] = blocks
    return HostTables(
        active, blocks, request, offset,
        (as_int64(blocks[request]), as_int64(offset)), torch.from_numpy(starts),
        *from_last_column(columns),
        torch.from_numpy(blocks), torch.ones(len(blocks), dtype=torch.int32),
    )  # fmt: skip


def row_starts(lengths: np.ndarray) -> np.ndarray:
    """Return the first row of each request, then the number of rows: [R] -> [R + 1] int32."""
    starts = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=starts[1:])
    return starts


def from_last_column(columns: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the table, and what makes the kernel load each state from its last column."""
    last = np.full(len(columns), columns.shape[1], dtype=np.int32)
    return torch.from_numpy(columns), torch.from_numpy(last)


def as_int64(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.int64))
