# SPDX-License-Identifier: Apache-2.0
"""Verify and commit as Triton kernels. Needs only torch and triton.

Both kernels step the state with `_step`, in the order, tile shapes and launch parameters of vLLM's
`fused_sigmoid_gating_delta_rule_update`: outputs and committed states are its own, bit for bit. A sum's
order on a GPU follows the layout of its tile, and that the width of its loads, so that what the compiler
knows of the state's alignment is arithmetic, too. So is adding to zeros, which makes -0 to +0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from vllm_eagle_ext.memory.state_blocks import record_width
from vllm_eagle_ext.replay.ops.triton_plan import MoveConvStates, plan, strides
from vllm_eagle_ext.replay.ops.types import (
    NULL_BLOCK,
    Batch,
    CommitPlan,
    Gating,
    Layer,
    Rows,
    StateCache,
)

__all__ = ["Commit", "plan", "verify"]

NULL: tl.constexpr = tl.constexpr(NULL_BLOCK)
THRESHOLD: tl.constexpr = tl.constexpr(20.0)  # above it softplus(x) is x
VECTOR_BYTES = 16  # the widest load: alignment beyond it changes nothing
LAUNCH = {"num_warps": 4, "num_stages": 3}
COLUMNS: tl.constexpr = tl.constexpr(7)  # of Commit's table


@triton.jit
def _step(
    h: tl.tensor,  # [BV, BK] fp32
    key: tl.tensor,  # [BK]
    value: tl.tensor,  # [BV]
    a: tl.tensor,
    b: tl.tensor,
    A_log: tl.tensor,
    dt_bias: tl.tensor,
) -> tl.tensor:
    """Return the state after one row."""
    key, value = key.to(tl.float32), value.to(tl.float32)
    x = a.to(tl.float32) + dt_bias.to(tl.float32)
    softplus = tl.where(x <= THRESHOLD, tl.log(1 + tl.exp(x)), x)
    decay = tl.exp(-tl.exp(A_log.to(tl.float32)) * softplus)
    key = key * tl.rsqrt(tl.sum(key * key) + 1e-6)
    h *= decay
    value -= tl.sum(h * key[None, :], 1)
    value *= tl.sigmoid(b.to(tl.float32))
    return h + value[:, None] * key[None, :]


# A mixed batch's rows are copies, with gates further apart or nearer than the projection's own.
@triton.jit(do_not_specialize=["a_row", "b_row"], do_not_specialize_on_alignment=["a", "b"])
def _verify(
    query: tl.tensor,  # [N, H, DK]
    key: tl.tensor,
    value: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    A_log: tl.tensor,
    dt_bias: tl.tensor,
    state: tl.tensor,
    records: tl.tensor,
    state_blocks: tl.tensor,
    starts: tl.tensor,
    out: tl.tensor,
    scale: tl.tensor,
    query_row: tl.tensor,
    key_row: tl.tensor,
    value_row: tl.tensor,
    a_row: tl.tensor,
    b_row: tl.tensor,
    out_row: tl.tensor,
    blocks_stride: tl.tensor,
    STATE_STRIDE: tl.constexpr,
    RECORD_STRIDE: tl.constexpr,
    RECORD_ROWS: tl.constexpr,
    H: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
) -> None:
    """Verify in one program per request, value head and value tile."""
    program = tl.program_id(0)
    tiles: tl.constexpr = (DV + BV - 1) // BV
    i_v, i_hv, request = program % tiles, program // tiles % HV, program // (tiles * HV)
    i_h = i_hv // (HV // H)
    block = tl.load(state_blocks + request * blocks_stride).to(tl.int64)
    first = tl.load(starts + request).to(tl.int64)
    rows = tl.load(starts + request + 1).to(tl.int64) - first
    if (block <= NULL) | (rows <= 0):
        return

    width: tl.constexpr = H * DK + HV * DV + 2 * HV
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    mask_k, mask_v = o_k < DK, o_v < DV
    tile = i_hv * DV * DK + o_v[:, None] * DK + o_k[None, :]
    mask = mask_v[:, None] & mask_k[None, :]
    h = tl.zeros([BV, BK], dtype=tl.float32)
    h += tl.load(state + block * STATE_STRIDE + tile, mask=mask, other=0).to(tl.float32)
    b_A, bias = tl.load(A_log + i_hv), tl.load(dt_bias + i_hv)
    # A record has one writer for each of its parts. (The interpreter cannot mask a block by a scalar.)
    writes_gates = i_v == 0
    writes_key = writes_gates & (i_hv % (HV // H) == 0)
    for i in range(0, rows):
        row = first + i
        b_q = tl.load(query + row * query_row + i_h * DK + o_k, mask=mask_k, other=0).to(tl.float32)
        b_k = tl.load(key + row * key_row + i_h * DK + o_k, mask=mask_k, other=0)
        b_v = tl.load(value + row * value_row + i_hv * DV + o_v, mask=mask_v, other=0)
        b_a, b_b = tl.load(a + row * a_row + i_hv), tl.load(b + row * b_row + i_hv)

        record = records + block * RECORD_STRIDE + i * width
        fits = row < first + RECORD_ROWS  # a graph may be captured with more
        tl.store(record + i_h * DK + o_k, b_k, mask=o_k < tl.where(writes_key & fits, DK, 0))
        tl.store(record + H * DK + i_hv * DV + o_v, b_v, mask=o_v < tl.where(fits, DV, 0))
        gates = record + H * DK + HV * DV + i_hv
        tl.store(gates, b_a, mask=writes_gates & fits)
        tl.store(gates + HV, b_b, mask=writes_gates & fits)

        b_q = b_q * tl.rsqrt(tl.sum(b_q * b_q) + 1e-6)
        b_q = b_q * scale
        h = _step(h, b_k, b_v, b_a, b_b, b_A, bias)
        b_o = tl.sum(h * b_q[None, :], 1)
        tl.store(out + row * out_row + i_hv * DV + o_v, b_o.to(out.dtype.element_ty), mask=mask_v)


@triton.jit
def _apply_states(
    table: tl.tensor,
    state_like: tl.tensor,
    record_like: tl.tensor,
    A_log_like: tl.tensor,
    dt_bias_like: tl.tensor,
    state_blocks: tl.tensor,
    rows_to_commit: tl.tensor,
    final: tl.tensor,
    block_end: tl.tensor,
    block_end_lengths: tl.tensor,
    blocks_stride: tl.tensor,
    blocks_group_stride: tl.tensor,
    group_stride: tl.tensor,
    RECORD_ROWS: tl.constexpr,
    STATE_ALIGNMENT: tl.constexpr,
    H: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
) -> None:
    """Commit in one program per layer, request, value head and value tile: none reads what another
    writes."""
    program = tl.program_id(0)
    tiles: tl.constexpr = (DV + BV - 1) // BV
    i_v, i_hv, request = program % tiles, program // tiles % HV, program // (tiles * HV)
    i_h, entry = i_hv // (HV // H), table + tl.program_id(1) * COLUMNS
    # An entry: state address, stride; records address, stride; A_log, dt_bias; group.
    group = tl.load(entry + 6)
    block = tl.load(state_blocks + group * blocks_group_stride + request * blocks_stride).to(tl.int64)
    mine = group * group_stride + request
    length = tl.load(rows_to_commit + mine)
    if (block <= NULL) | (length <= 0):
        return
    length = tl.minimum(length, RECORD_ROWS)
    final_block, end_block = tl.load(final + mine).to(tl.int64), tl.load(block_end + mine).to(tl.int64)
    end_length = tl.where(end_block > NULL, tl.load(block_end_lengths + mine), 0)
    state, stride = tl.load(entry).to(tl.pointer_type(state_like.dtype.element_ty)), tl.load(entry + 1)
    records = tl.load(entry + 2).to(tl.pointer_type(record_like.dtype.element_ty))
    records += block * tl.load(entry + 3)
    A_log = tl.load(entry + 4).to(tl.pointer_type(A_log_like.dtype.element_ty))
    dt_bias = tl.load(entry + 5).to(tl.pointer_type(dt_bias_like.dtype.element_ty))
    b_A, bias = tl.load(A_log + i_hv), tl.load(dt_bias + i_hv)

    width: tl.constexpr = H * DK + HV * DV + 2 * HV
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    mask_k, mask_v = o_k < DK, o_v < DV
    tile = i_hv * DV * DK + o_v[:, None] * DK + o_k[None, :]
    mask = mask_v[:, None] & mask_k[None, :]
    source = tl.multiple_of(state + block * stride, STATE_ALIGNMENT)
    h = tl.zeros([BV, BK], dtype=tl.float32)
    h += tl.load(source + tile, mask=mask, other=0).to(tl.float32)
    for i in range(0, length):
        record = records + i * width
        b_k = tl.load(record + i_h * DK + o_k, mask=mask_k, other=0)
        b_v = tl.load(record + H * DK + i_hv * DV + o_v, mask=mask_v, other=0)
        gates = record + H * DK + HV * DV + i_hv
        h = _step(h, b_k, b_v, tl.load(gates), tl.load(gates + HV), b_A, bias)
        if i + 1 == end_length:
            target = tl.multiple_of(state + end_block * stride, STATE_ALIGNMENT)
            tl.store(target + tile, h.to(state.dtype.element_ty), mask=mask)
    if final_block > NULL:
        target = tl.multiple_of(state + final_block * stride, STATE_ALIGNMENT)
        tl.store(target + tile, h.to(state.dtype.element_ty), mask=mask)


def _tiles(cache: StateCache) -> dict[str, int]:
    """Return the sizes of a layer and of a program's tile, by the kernels' names."""
    sizes = layer_sizes(cache)
    BK, BV = triton.next_power_of_2(sizes["DK"]), min(triton.next_power_of_2(sizes["DV"]), 32)
    return sizes | {"BK": BK, "BV": BV}


def layer_sizes(cache: StateCache) -> dict[str, int]:
    """Return heads and widths of a layer, by the kernels' names."""
    _, HV, DV, DK = cache.state.shape
    H = (cache.records.shape[2] - HV * (DV + 2)) // DK
    if record_width(H, DK, HV, DV) != cache.records.shape[2]:
        raise ValueError(f"records {cache.records.shape} do not fit states {cache.state.shape}")
    if not (cache.state[:1].is_contiguous() and cache.records[:1].is_contiguous()):
        raise ValueError("a block's state and its records must be contiguous in themselves")
    return {"H": H, "HV": HV, "DK": DK, "DV": DV}


def programs(batch: Batch, sizes: dict[str, int]) -> int:
    """Count the programs of one layer. The rows have no part in it, so that a graph may hold the
    launch."""
    return batch.state_blocks.shape[-1] * sizes["HV"] * triton.cdiv(sizes["DV"], sizes["BV"])


def launch_verify(
    kernel: Any,
    rows: Rows,
    gating: Gating,
    cache: StateCache,
    batch: Batch,
    out: torch.Tensor,
    **constants: int,
) -> None:
    """Launch a kernel with `_verify`'s arguments.

    Args:
        constants: sizes of a layer and of a program's tile, and of the launch.

    Raises:
        ValueError: rows that would be rounded when recorded, or whose parts a kernel would not find.
    """
    for tensor in (*rows, out):
        if tensor.dtype != cache.records.dtype or not tensor[:1].is_contiguous():
            raise ValueError(f"rows must be {cache.records.dtype}, as records, and contiguous each")
    count = programs(batch, constants)
    if not count:
        return
    kernel[(count,)](
        *rows,
        *gating,
        cache.state,
        cache.records,
        batch.state_blocks,
        batch.starts,
        out,
        constants["DK"] ** -0.5,
        *(tensor.stride(0) for tensor in (*rows, out, batch.state_blocks)),
        STATE_STRIDE=cache.state.stride(0),
        RECORD_STRIDE=cache.records.stride(0),
        RECORD_ROWS=cache.records.shape[1],
        **constants,
    )


def verify(rows: Rows, gating: Gating, cache: StateCache, batch: Batch, out: torch.Tensor) -> None:
    """Write the outputs of all rows from the committed states to `out` [N, HV, DV]; record the rows.

    Heads and widths of `rows` and `out` are contiguous, and so are a block's state and records; rows and
    blocks may be any distance apart. Rows of padding are not touched.
    """
    launch_verify(_verify, rows, gating, cache, batch, out, **_tiles(cache), **LAUNCH)


class Commit:
    """Writes what a plan says, in all layers at once: one launch for states, one for conv states.

    The layers share shapes, dtypes and the strides inside a block. Their tensors must never move.
    """

    def __init__(self, layers: Sequence[Layer], history: int) -> None:
        """Keep the layers, as `types.CommitKernel` does."""
        self._layers = tuple(layers)  # the table holds only addresses
        caches, _, groups = zip(*self._layers, strict=True)
        first = caches[0]
        self._move_conv_states = MoveConvStates([cache.conv for cache in caches], groups, history)
        self._sizes = _tiles(first)
        self._state_alignment = self._alignment(first.state)
        if len({self._layout(cache, gating) for cache, gating, _ in self._layers}) > 1:
            raise ValueError("the layers of a commit differ in shape, dtype, stride or alignment")
        table = [
            [c.state.data_ptr(), c.state.stride(0), c.records.data_ptr(), c.records.stride(0)]
            + [g.A_log.data_ptr(), g.dt_bias.data_ptr(), group]
            for c, g, group in self._layers
        ]
        self._table = torch.tensor(table, dtype=torch.int64, device=first.state.device)

    @staticmethod
    def _alignment(blocks: torch.Tensor) -> int:
        """Return the bytes of which every block's start is known to be a multiple, as `_verify` gets to
        know it."""
        if blocks.data_ptr() % VECTOR_BYTES:
            return blocks.element_size()
        return math.gcd(VECTOR_BYTES, blocks.stride(0) * blocks.element_size())

    def _layout(self, cache: StateCache, gating: Gating) -> tuple[object, ...]:
        inner = [(t.shape[1:], t.dtype, t.stride()[1:]) for t in (cache.state, cache.records, *gating)]
        return (*inner, self._alignment(cache.state))

    def __call__(self, batch: Batch, plan: CommitPlan) -> None:
        """Write, as `types.CommitKernel` does."""
        if batch.state_blocks.shape[-1]:
            self._launch(batch, plan)
            self._move_conv_states(batch, plan)

    def _launch(self, batch: Batch, plan: CommitPlan) -> None:
        """Launch the kernel that writes the states."""
        first, gating, _ = self._layers[0]
        _apply_states[(programs(batch, self._sizes), len(self._layers))](
            self._table,
            first.state,
            first.records,
            *gating,
            batch.state_blocks,
            *plan,
            *strides(batch, plan),
            RECORD_ROWS=first.records.shape[1],
            STATE_ALIGNMENT=self._state_alignment,
            **self._sizes,
            **LAUNCH,
        )
