# SPDX-License-Identifier: Apache-2.0
"""What surrounds a step's recurrence: the gather of state blocks, a commit's plan, the conv states."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from vllm_eagle_ext.replay.ops.types import (
    NULL_BLOCK,
    Align,
    Batch,
    BlockPlaces,
    BlockTables,
    CommitPlan,
)

NULL: tl.constexpr = tl.constexpr(NULL_BLOCK)
GATHER_BLOCK = PLAN_BLOCK = 128  # requests per program
CHANNEL_BLOCK = 256


@triton.jit(
    do_not_specialize=["requests", "padded", "table_row", "out_row", "block_size"],
    do_not_specialize_on_alignment=["addresses", "indices", "seq_lens", "out"],
)
def _gather_blocks(
    addresses: tl.tensor,
    indices: tl.tensor,
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
    request = tl.load(indices + i, mask=active, other=0) if MAPPED else i
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
        first if places.indices is None else places.indices,
        first if places.seq_lens is None else places.seq_lens,
        out,
        places.requests,
        padded,
        first.stride(0),
        out.stride(1),
        places.block_size,
        MAPPED=places.indices is not None,
        ALIGNED=places.seq_lens is not None,
        BLOCK=GATHER_BLOCK,
        num_warps=4,
    )


# Its tensors are a step's, aligned or not: one variant for all.
@triton.jit(
    do_not_specialize=["requests", "columns", "table_row"],
    do_not_specialize_on_alignment=["state_blocks", "starts", "num_sampled", "indices", "num_computed"],
)
def _plan(
    state_blocks: tl.tensor,
    starts: tl.tensor,
    num_sampled: tl.tensor,
    indices: tl.tensor,
    addresses: tl.tensor,
    num_computed: tl.tensor,
    rows_to_commit: tl.tensor,
    final: tl.tensor,
    block_end: tl.tensor,
    block_end_lengths: tl.tensor,
    requests: tl.tensor,
    columns: tl.tensor,
    blocks_stride: tl.tensor,
    blocks_group_stride: tl.tensor,
    group_stride: tl.tensor,
    table_row: tl.tensor,
    block_size: tl.tensor,
    MAPPED: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Plan in one program per part of the requests and cache group."""
    # The rows that each request commits.
    i, group = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1).to(tl.int64)
    is_request, place = i < requests, group * group_stride + i
    blocks = state_blocks + group * blocks_group_stride
    block = tl.load(blocks + i * blocks_stride, mask=is_request, other=NULL)
    rows = tl.load(starts + i + 1, mask=is_request, other=0)
    rows -= tl.load(starts + i, mask=is_request, other=0)
    active = (block > NULL) & (rows > 0)
    request = tl.load(indices + i, mask=active, other=0) if MAPPED else i
    sampled = tl.load(num_sampled + request, mask=active, other=0)
    length = tl.where(active, tl.minimum(tl.maximum(sampled, 1), rows), 0)

    # The blocks that they are written to.
    final_block, end_length = block, tl.zeros([BLOCK], tl.int32)
    end_block = tl.full([BLOCK], NULL, tl.int32)
    if ALIGNED:
        computed = tl.load(num_computed + request, mask=active, other=0)
        table = tl.load(addresses + group).to(tl.pointer_type(tl.int32))
        table += request.to(tl.int64) * table_row
        column = tl.minimum(tl.maximum(computed + length - 1, 0) // block_size, columns - 1)
        final_block = tl.load(table + column, mask=active, other=NULL)
        end = (computed // block_size + 1) * block_size
        crosses = active & (computed + length > end)  # where it ends there, the block is `final`
        end_block = tl.load(table + end // block_size - 1, mask=crosses, other=NULL)
        end_length = tl.where(crosses & (end_block > NULL), end - computed, 0)
    tl.store(rows_to_commit + place, length, mask=is_request)
    tl.store(final + place, tl.where(active, final_block, NULL), mask=is_request)
    tl.store(block_end + place, end_block, mask=is_request)
    tl.store(block_end_lengths + place, end_length, mask=is_request)


def strides(batch: Batch, plan: CommitPlan) -> tuple[int, int, int]:
    """Return three distances in elements: from one request's state block to the next, from one cache
    group's to the next, and from one group to the next in the plan. The last two are 0 where there is
    one group."""
    blocks, part = batch.state_blocks, plan.final
    if blocks.ndim == 1:
        return blocks.stride(0), 0, 0
    if part.stride(1) != 1 or len({part.stride() for part in plan}) > 1:
        raise ValueError("the parts of a plan must have the same strides, and requests side by side")
    return blocks.stride(1), blocks.stride(0), part.stride(0)


def plan(
    batch: Batch,
    num_sampled: torch.Tensor,
    indices: torch.Tensor | None,
    align: Align | None,
    out: CommitPlan,
) -> None:
    """Turn the sampled counts into what `Commit` writes, as `types.ReplayKernels.plan` does."""
    requests = batch.state_blocks.shape[-1]
    if not requests:
        return
    if align and len(align.tables.tensors) != batch.groups:
        raise ValueError(f"{len(align.tables.tensors)} block tables for {batch.groups} cache groups")
    table = align.tables.tensors[0] if align else batch.state_blocks
    _plan[(triton.cdiv(requests, PLAN_BLOCK), batch.groups)](
        batch.state_blocks,
        batch.starts,
        num_sampled,
        batch.state_blocks if indices is None else indices,
        *(align.tables.addresses, align.num_computed)
        if align
        else (batch.state_blocks, batch.state_blocks),
        *out,
        requests,
        table.shape[1] if align else 1,
        *strides(batch, out),
        table.stride(0),
        align.block_size if align else 1,
        MAPPED=indices is not None,
        ALIGNED=align is not None,
        BLOCK=PLAN_BLOCK,
        num_warps=4,
    )


@triton.jit
def _move_conv_states(
    table: tl.tensor,
    conv_like: tl.tensor,
    state_blocks: tl.tensor,
    rows_to_commit: tl.tensor,
    final: tl.tensor,
    block_end: tl.tensor,
    block_end_lengths: tl.tensor,
    channels: tl.tensor,
    blocks_stride: tl.tensor,
    blocks_group_stride: tl.tensor,
    group_stride: tl.tensor,
    channel_stride: tl.tensor,
    column_stride: tl.tensor,
    HISTORY: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_H: tl.constexpr,
) -> None:
    """Move in one program per layer, request and part of the channels. State blocks may coincide: all
    loads come first."""
    parts = tl.cdiv(channels, BLOCK_C)
    program, entry = tl.program_id(0), table + tl.program_id(1) * 3
    request, group = program // parts, tl.load(entry + 2)  # an entry: conv address, stride; group
    block = tl.load(state_blocks + group * blocks_group_stride + request * blocks_stride).to(tl.int64)
    mine = group * group_stride + request
    length = tl.load(rows_to_commit + mine)
    if (block <= NULL) | (length <= 0):
        return
    final_block, end_block = tl.load(final + mine).to(tl.int64), tl.load(block_end + mine).to(tl.int64)
    end_length = tl.load(block_end_lengths + mine)

    conv = tl.load(entry).to(tl.pointer_type(conv_like.dtype.element_ty))
    stride = tl.load(entry + 1)
    channel = program % parts * BLOCK_C + tl.arange(0, BLOCK_C)
    column = tl.arange(0, BLOCK_H)
    mask = (channel[:, None] < channels) & (column[None, :] < HISTORY)
    mask_end = mask & (column[None, :] < tl.where(end_block > NULL, HISTORY, 0))
    mask_final = mask & (column[None, :] < tl.where(final_block > NULL, HISTORY, 0))
    offsets = channel[:, None] * channel_stride + column[None, :] * column_stride
    source = conv + block * stride + offsets
    kept = tl.load(source + (length - 1) * column_stride, mask=mask)
    kept_end = tl.load(source + (end_length - 1) * column_stride, mask=mask_end)
    tl.debug_barrier()  # one thread's columns are another's sources
    tl.store(conv + end_block * stride + offsets, kept_end, mask=mask_end)
    tl.store(conv + final_block * stride + offsets, kept, mask=mask_final)


class MoveConvStates:
    """Moves the conv states after the committed rows, all layers in one launch."""

    def __init__(self, convs: Sequence[torch.Tensor], groups: Sequence[int], history: int) -> None:
        """Keep the states. convs: per layer [P, dim, W - 1 + T - 1]; strides inside a block are those of
        the first. groups: the cache group of each."""
        self._convs, self._history = tuple(convs), history
        if len({(conv.shape[1:], conv.dtype, conv.stride()[1:]) for conv in convs}) > 1:
            raise ValueError("the convolution states of a commit differ in shape, dtype or stride")
        each = zip(convs, groups, strict=True)
        table = [[conv.data_ptr(), conv.stride(0), group] for conv, group in each]
        self._table = torch.tensor(table, dtype=torch.int64, device=convs[0].device)

    def __call__(self, batch: Batch, plan: CommitPlan) -> None:
        first = self._convs[0]
        parts = triton.cdiv(first.shape[1], CHANNEL_BLOCK)
        _move_conv_states[(parts * batch.state_blocks.shape[-1], len(self._convs))](
            self._table,
            first,
            batch.state_blocks,
            *plan,
            first.shape[1],
            *strides(batch, plan),
            first.stride(1),
            first.stride(2),
            HISTORY=self._history,
            BLOCK_C=CHANNEL_BLOCK,
            BLOCK_H=triton.next_power_of_2(self._history),
            num_warps=4,
        )
