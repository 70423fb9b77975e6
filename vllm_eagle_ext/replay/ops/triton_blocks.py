# SPDX-License-Identifier: Apache-2.0
"""Gathers a step's state blocks from the block tables of all cache groups, in one launch."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from vllm_eagle_ext.replay.ops.types import NULL_BLOCK, BlockPlaces, BlockTables

NULL: tl.constexpr = tl.constexpr(NULL_BLOCK)
GATHER_BLOCK = 128  # requests per program


@triton.jit(
    do_not_specialize=["requests", "padded", "table_row", "out_row", "block_size"],
    do_not_specialize_on_alignment=["addresses", "rows_of", "seq_lens", "out"],
)
def _gather_blocks(
    addresses: tl.tensor,
    rows_of: tl.tensor,
    seq_lens: tl.tensor,
    out: tl.tensor,
    requests: tl.tensor,
    padded: tl.tensor,
    table_row: tl.tensor,
    out_row: tl.tensor,
    block_size: tl.tensor,
    MAPPED: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Gather in one program per part of the requests and cache group."""
    i, group = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1).to(tl.int64)
    active = i < requests
    request = tl.load(rows_of + i, mask=active, other=0) if MAPPED else i
    column = tl.zeros([BLOCK], tl.int32)
    if ALIGNED:
        length = tl.load(seq_lens + request, mask=active, other=1)
        column = tl.maximum(length - 1, 0) // block_size
    table = tl.load(addresses + group).to(tl.pointer_type(tl.int32))
    block = tl.load(table + request.to(tl.int64) * table_row + column, mask=active, other=NULL)
    tl.store(out + group * out_row + i, block, mask=i < padded)


def gather_blocks(tables: BlockTables, places: BlockPlaces, out: torch.Tensor) -> None:
    """Fill `out` [1, G, R]: each request's state block in each group's table, NULL_BLOCK after the
    last."""
    _, groups, padded = out.shape
    first = tables.tensors[0]
    _gather_blocks[(triton.cdiv(padded, GATHER_BLOCK), groups)](
        tables.addresses,
        first if places.rows_of is None else places.rows_of,
        first if places.seq_lens is None else places.seq_lens,
        out,
        places.requests,
        padded,
        first.stride(0),
        out.stride(1),
        places.block_size,
        MAPPED=places.rows_of is not None,
        ALIGNED=places.seq_lens is not None,
        BLOCK=GATHER_BLOCK,
        num_warps=4,
    )
