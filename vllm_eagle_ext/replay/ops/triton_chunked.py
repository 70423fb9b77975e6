# SPDX-License-Identifier: Apache-2.0
"""Verify and commit on tensor cores, all rows of a step at once. Needs only torch and triton.

Same recorded inputs as `ops.triton`: either may commit what the other verified. Outputs and states are
not those of vLLM's kernel to the last bit, but as near to the exact ones.

The chunked form of the gated delta rule (Yang et al., "Gated Delta Networks", arXiv 2412.06464, section
3.3, the WY form). With S0 [DV, DK] the committed state, d[s, t] the decay from row s to row t, d[t] that
from S0, k and q of unit length:

    A[s, t] = beta_t d[s, t] k_s k_t           for s < t
    M[s, t] = d[s, t] k_s q_t                  for s <= t
    U = (V^T - S0 K^T d) diag(beta) (1 + A)^-1           [DV, T], what each row adds to the state
    O = S0 Q^T d + U M,    S_n = d[n] S0 + U diag(d[s, n]) K

Rows are raw in the products, which tensor cores then form exactly; their lengths multiply afterwards.
The state passes in tiles of BD columns, so that a program has no more of it in registers at a time. A
commit reads it twice: the second time it is in the second-level cache.

Memory bounds these kernels, not arithmetic, as soon as a step has a few requests: a state is read once
by a verify, once from memory by a commit (a second time from the second-level cache) and written once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from vllm_eagle_ext.replay.ops import triton as sequential
from vllm_eagle_ext.replay.ops.triton import COLUMNS, NULL, launch_verify, layer_sizes, programs
from vllm_eagle_ext.replay.ops.triton_chunked_math import (
    column,
    decays_between,
    dot,
    dot_fp32,
    dot_rounded,
    dot_rows,
    inverse,
    places,
    row_decays,
)
from vllm_eagle_ext.replay.ops.triton_plan import plan, strides
from vllm_eagle_ext.replay.ops.types import Batch, CommitPlan, Gating, Layer, Rows, StateCache

__all__ = ["Commit", "plan", "verify"]

LEAST_WIDTH = 16  # rows and columns of a tensor core's product
MOST_ROWS = 64
DTYPES = (torch.bfloat16, torch.float16)  # of rows; sums of three bf16 parts hold either exactly
COLUMNS_AT_A_TIME = 32
FEW_HEADS = 128  # value heads of a launch, below which a head is shared among more programs
VERIFY = {"num_warps": 4, "STAGES": 3}
COMMIT = {"num_warps": 4, "STAGES": 3}


@triton.jit
def _squares(rows: tl.tensor) -> tl.tensor:
    wide = rows.to(tl.float32)
    return tl.sum(wide * wide, 1)


@triton.jit
def _solution(k_k: tl.tensor, k_unit: tl.tensor, between: tl.tensor, b: tl.tensor) -> tl.tensor:
    """Compute diag(beta) (1 + A)^-1, from products of raw keys and what makes their length one."""
    s, t = places(k_k.shape[0])
    beta = tl.sigmoid(b.to(tl.float32))
    A = tl.where(s < t, between * k_unit[:, None] * k_k * (beta * k_unit)[None, :], 0.0)
    return inverse(A) * beta[:, None]


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
    ROWS: tl.constexpr,
    BD: tl.constexpr,
    BV: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Verify in one program per request, value head and value tile, at most ROWS rows of a request."""
    program = tl.program_id(0)
    tiles: tl.constexpr = (DV + BV - 1) // BV
    i_v, i_hv, request = program % tiles, program // tiles % HV, program // (tiles * HV)
    i_h = i_hv // (HV // H)
    block = tl.load(state_blocks + request * blocks_stride).to(tl.int64)
    first = tl.load(starts + request).to(tl.int64)
    rows = (tl.load(starts + request + 1).to(tl.int64) - first).to(tl.int32)
    if (block <= NULL) | (rows <= 0):
        return

    width: tl.constexpr = H * DK + HV * DV + 2 * HV
    o, o_v = tl.arange(0, ROWS), i_v * BV + tl.arange(0, BV)
    here, mask_v = o < rows, o_v < DV
    # A record has one writer for each of its parts. (The interpreter cannot mask a block by a scalar.)
    kept = tl.minimum(rows, RECORD_ROWS)  # a graph may be captured with more
    gates_kept = tl.where(i_v == 0, kept, 0)
    keys_kept = tl.where(i_hv % (HV // H) == 0, gates_kept, 0)
    record = (records + block * RECORD_STRIDE) + o * width

    h_at = (state + block * STATE_STRIDE + i_hv * DV * DK) + o_v[:, None] * DK
    k_at = (key + first * key_row + i_h * DK) + o[:, None] * key_row
    q_at = (query + first * query_row + i_h * DK) + o[:, None] * query_row
    h_k, h_q = tl.zeros([BV, ROWS], dtype=tl.float32), tl.zeros([BV, ROWS], dtype=tl.float32)
    k_k, k_q = tl.zeros([ROWS, ROWS], dtype=tl.float32), tl.zeros([ROWS, ROWS], dtype=tl.float32)
    k_squares, q_squares = tl.zeros([ROWS], dtype=tl.float32), tl.zeros([ROWS], dtype=tl.float32)
    for d in tl.range(0, DK, BD, num_stages=STAGES):
        o_k = (d + tl.arange(0, BD))[None, :]
        h = tl.load(h_at + o_k, mask=mask_v[:, None] & (o_k < DK), other=0)
        b_k = tl.load(k_at + o_k, mask=here[:, None] & (o_k < DK), other=0)
        b_q = tl.load(q_at + o_k, mask=here[:, None] & (o_k < DK), other=0)
        h_k, h_q = dot_rows(h, tl.trans(b_k), h_k), dot_rows(h, tl.trans(b_q), h_q)
        k_k, k_q = dot(b_k, tl.trans(b_k), k_k), dot(b_k, tl.trans(b_q), k_q)
        k_squares, q_squares = k_squares + _squares(b_k), q_squares + _squares(b_q)
        tl.store(record[:, None] + i_h * DK + o_k, b_k, mask=(o < keys_kept)[:, None] & (o_k < DK))

    b_a = tl.load(a + first * a_row + i_hv + o * a_row, mask=here, other=0)
    b_b = tl.load(b + first * b_row + i_hv + o * b_row, mask=here, other=0)
    v_at = (value + first * value_row + i_hv * DV) + o[:, None] * value_row + o_v[None, :]
    b_v = tl.load(v_at, mask=here[:, None] & mask_v[None, :], other=0)
    v_to = record[:, None] + H * DK + i_hv * DV + o_v[None, :]
    tl.store(v_to, b_v, mask=(o < kept)[:, None] & mask_v[None, :])
    gates = record + H * DK + HV * DV + i_hv
    tl.store(gates, b_a, mask=o < gates_kept)
    tl.store(gates + HV, b_b, mask=o < gates_kept)

    decays = row_decays(b_a, tl.load(A_log + i_hv), tl.load(dt_bias + i_hv), here)
    between, before = decays_between(decays), tl.cumprod(decays, 0)
    k_unit, q_unit = tl.rsqrt(k_squares + 1e-6), tl.rsqrt(q_squares + 1e-6) * scale
    s, t = places(ROWS)
    M = tl.where(s <= t, between * k_unit[:, None] * k_q * q_unit[None, :], 0.0)
    from_errors = dot_rounded(_solution(k_k, k_unit, between, b_b), M)
    errors = tl.trans(b_v).to(tl.float32) - h_k * (before * k_unit)[None, :]
    outputs = h_q * (before * q_unit)[None, :] + dot_fp32(errors, from_errors)
    to = (out + first * out_row + i_hv * DV) + o[None, :] * out_row + o_v[:, None]
    tl.store(to, outputs.to(out.dtype.element_ty), mask=here[None, :] & mask_v[:, None])


@triton.jit
def _store_states(
    source: tl.tensor,  # [BV, 1] pointers to the tile's rows, and to those of its targets
    target: tl.tensor,
    keys: tl.tensor,  # [ROWS, 1] pointers to recorded keys
    errors: tl.tensor,
    solution: tl.tensor,
    k_unit: tl.tensor,
    between: tl.tensor,
    before: tl.tensor,
    length: tl.tensor,
    mask_v: tl.tensor,
    DK: tl.constexpr,
    BD: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Store the state after `length` rows."""
    o = tl.arange(0, before.shape[0])
    here = o < length
    decay = tl.sum(tl.where(o == length - 1, before, 0.0), 0)
    after = tl.where(here, column(between, length - 1), 0.0)
    weights = solution * (after * k_unit)[None, :]
    if target.dtype.element_ty == tl.float32:
        written = dot_rounded(errors, weights)
    else:  # a state's rounding to 16 bits is far above what tensor cores truncate
        written = dot_fp32(errors, weights)
    for d in tl.range(0, DK, BD, num_stages=STAGES):
        o_k = (d + tl.arange(0, BD))[None, :]
        mask = mask_v[:, None] & (o_k < DK)
        h = tl.load(source + o_k, mask=mask, other=0).to(tl.float32)
        b_k = tl.load(keys + o_k, mask=here[:, None] & (o_k < DK), other=0)
        # Tensor cores truncate where they add: a state in their sums would shrink with every commit.
        update = dot_rows(written, b_k, tl.zeros([written.shape[0], BD], dtype=tl.float32))
        h = h * decay + update
        tl.store(target + o_k, h.to(target.dtype.element_ty), mask=mask)


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
    RECORD_ALIGNMENT: tl.constexpr,
    H: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    ROWS: tl.constexpr,
    BD: tl.constexpr,
    BV: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Commit in one program per layer, request, value head and value tile: none reads what another
    writes."""
    program = tl.program_id(0)
    tiles: tl.constexpr = (DV + BV - 1) // BV
    i_v, i_hv, request = program % tiles, program // tiles % HV, program // (tiles * HV)
    i_h = i_hv // (HV // H)
    entry = table + tl.program_id(1) * COLUMNS
    group = tl.load(entry + 6)
    block = tl.load(state_blocks + group * blocks_group_stride + request * blocks_stride).to(tl.int64)
    mine = group * group_stride + request
    length = tl.load(rows_to_commit + mine)
    if (block <= NULL) | (length <= 0):
        return
    length = tl.minimum(length, RECORD_ROWS)
    final_block, end_block = tl.load(final + mine).to(tl.int64), tl.load(block_end + mine).to(tl.int64)
    end_length = tl.where(end_block > NULL, tl.minimum(tl.load(block_end_lengths + mine), length), 0)

    state = tl.load(entry).to(tl.pointer_type(state_like.dtype.element_ty))
    stride = tl.load(entry + 1)
    records = tl.load(entry + 2).to(tl.pointer_type(record_like.dtype.element_ty))
    records = tl.multiple_of(records + block * tl.load(entry + 3), RECORD_ALIGNMENT)
    A_log = tl.load(entry + 4).to(tl.pointer_type(A_log_like.dtype.element_ty))
    dt_bias = tl.load(entry + 5).to(tl.pointer_type(dt_bias_like.dtype.element_ty))

    width: tl.constexpr = H * DK + HV * DV + 2 * HV
    o, o_v = tl.arange(0, ROWS), i_v * BV + tl.arange(0, BV)
    here, mask_v = o < length, o_v < DV
    tile = i_hv * DV * DK + o_v[:, None] * DK
    source = tl.multiple_of(state + block * stride, STATE_ALIGNMENT) + tile
    k_at = records + i_h * DK + o[:, None] * width
    h_k = tl.zeros([BV, ROWS], dtype=tl.float32)
    k_k = tl.zeros([ROWS, ROWS], dtype=tl.float32)
    k_squares = tl.zeros([ROWS], dtype=tl.float32)
    for d in tl.range(0, DK, BD, num_stages=STAGES):
        o_k = (d + tl.arange(0, BD))[None, :]
        h = tl.load(source + o_k, mask=mask_v[:, None] & (o_k < DK), other=0)
        b_k = tl.load(k_at + o_k, mask=here[:, None] & (o_k < DK), other=0)
        h_k = dot_rows(h, tl.trans(b_k), h_k)
        k_k = dot(b_k, tl.trans(b_k), k_k)
        k_squares += _squares(b_k)

    v_at = records + H * DK + i_hv * DV + o[:, None] * width + o_v[None, :]
    b_v = tl.load(v_at, mask=here[:, None] & mask_v[None, :], other=0)
    gates = records + H * DK + HV * DV + i_hv + o * width
    b_a = tl.load(gates, mask=here, other=0)
    b_b = tl.load(gates + HV, mask=here, other=0)
    decays = row_decays(b_a, tl.load(A_log + i_hv), tl.load(dt_bias + i_hv), here)
    between, before = decays_between(decays), tl.cumprod(decays, 0)
    k_unit = tl.rsqrt(k_squares + 1e-6)
    solution = _solution(k_k, k_unit, between, b_b)
    errors = tl.trans(b_v).to(tl.float32) - h_k * (before * k_unit)[None, :]
    # Twice at most. The block that the state is read from is written last: it may be either of the two.
    for turn in range(0, tl.where(end_length > 0, 2, 1)):
        at_end = (end_length > 0) & ((turn == 0) == (end_block != block))
        to = tl.where(at_end, end_block, final_block)
        if to > NULL:
            target = tl.multiple_of(state + to * stride, STATE_ALIGNMENT) + tile
            rows = tl.where(at_end, end_length, length)
            _store_states(
                source,
                target,
                k_at,
                errors,
                solution,
                k_unit,
                between,
                before,
                rows,
                mask_v,
                DK,
                BD,
                STAGES,
            )


def unsupported_reason(
    key_width: int, value_width: int, rows: int, dtype: torch.dtype, state_dtype: torch.dtype
) -> str | None:
    """Say why these kernels cannot run a layer; None: they can.

    Args:
        rows: of a request in a step, 1 + K at most.
        dtype: of rows.
    """
    if key_width % LEAST_WIDTH or value_width % LEAST_WIDTH:
        return f"heads are {key_width} and {value_width} wide, allowed are multiples of {LEAST_WIDTH}"
    if rows > MOST_ROWS:
        return f"a step has up to {rows} rows of a request, allowed are {MOST_ROWS}"
    if dtype not in DTYPES:
        return f"rows are {dtype}, allowed are bfloat16 and float16"
    if state_dtype not in (torch.float32, *DTYPES):
        return f"states are {state_dtype}, allowed are float32, bfloat16 and float16"
    return None


def _sizes_for(cache: StateCache, requests: int, layers: int = 1) -> dict[str, int]:
    """Return the sizes of a layer and of a program's tile, by the kernels' names. A launch's tile
    depends only on its layers and the padded number of requests, so that a graph may hold it."""
    sizes = layer_sizes(cache)
    rows, DK, DV = cache.records.shape[1], sizes["DK"], sizes["DV"]
    reason = unsupported_reason(DK, DV, rows, cache.records.dtype, cache.state.dtype)
    if reason:
        raise ValueError(reason)
    BV = 128 if layers * requests * sizes["HV"] >= FEW_HEADS else 32
    return {
        **sizes,
        "ROWS": max(triton.next_power_of_2(rows), LEAST_WIDTH),
        "BD": min(triton.next_power_of_2(DK), COLUMNS_AT_A_TIME),
        "BV": min(triton.next_power_of_2(DV), BV),
    }


def verify(rows: Rows, gating: Gating, cache: StateCache, batch: Batch, out: torch.Tensor) -> None:
    """Write the outputs of all rows from the committed states to `out` [N, HV, DV]; record the rows.

    Heads and widths of `rows` and `out` are contiguous, and so are a block's state and records; rows and
    blocks may be any distance apart. Rows of padding are not touched, nor a request's rows after
    the 16, 32 or 64 that hold all that can be recorded: only the capture of a graph has such.

    Raises:
        ValueError: shapes or dtypes that these kernels cannot run.
    """
    sizes = _sizes_for(cache, len(batch.state_blocks))
    launch_verify(_verify, rows, gating, cache, batch, out, **sizes, **VERIFY)


class Commit(sequential.Commit):
    """Writes what a plan says, in all layers at once: one launch for states, one for conv states."""

    def __init__(self, layers: Sequence[Layer], history: int) -> None:
        """Keep the layers, as `types.CommitKernel` does.

        Raises:
            ValueError: the layers differ, or have shapes or dtypes that these kernels cannot run.
        """
        super().__init__(layers, history)
        caches = [cache for cache, *_ in self._layers]
        _sizes_for(caches[0], requests=1)
        self._record_alignment = math.gcd(*(self._alignment(cache.records) for cache in caches))

    def _launch(self, batch: Batch, plan: CommitPlan) -> None:
        first, gating, _ = self._layers[0]
        sizes = _sizes_for(first, batch.state_blocks.shape[-1], len(self._layers))
        _apply_states[(programs(batch, sizes), len(self._layers))](
            self._table,
            first.state,
            first.records,
            *gating,
            batch.state_blocks,
            *plan,
            *strides(batch, plan),
            RECORD_ROWS=first.records.shape[1],
            STATE_ALIGNMENT=self._state_alignment,
            RECORD_ALIGNMENT=self._record_alignment,
            **sizes,
            **COMMIT,
        )
