# SPDX-License-Identifier: Apache-2.0
"""Parts of the chunked kernels: exact products of fp32 on tensor cores, decays, a triangular inverse.

All matrices over the rows of a chunk are transposed, [s, t] with s the earlier row, because the state is
the left operand of every product: [value rows, key width].
"""

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

THRESHOLD: tl.constexpr = tl.constexpr(20.0)  # above it softplus(x) is x


@triton.jit
def _truncated(x: tl.tensor) -> tl.tensor:
    """Return fp32 with the mantissa of bf16: the upper half of the bits."""
    return (x.to(tl.uint32, bitcast=True) & 0xFFFF0000).to(tl.float32, bitcast=True)


@triton.jit
def _three_parts(x: tl.tensor):  # type: ignore[no-untyped-def]
    """Return three bf16 tensors whose sum is x, to the last bit: 3 x 8 bits of mantissa."""
    high = _truncated(x)
    rest = x - high
    middle = _truncated(rest)
    return high.to(tl.bfloat16), middle.to(tl.bfloat16), (rest - middle).to(tl.bfloat16)


INTERPRETED: tl.constexpr = tl.constexpr(not isinstance(_three_parts, triton.JITFunction))


@triton.jit
def dot(x: tl.tensor, y: tl.tensor, sums: tl.tensor) -> tl.tensor:
    """Compute sums + x y on tensor cores. Triton's interpreter would multiply the bits of bf16 as
    integers."""
    if INTERPRETED:
        return tl.dot(x.to(tl.float32), y.to(tl.float32), sums, input_precision="ieee")
    else:
        return tl.dot(x, y, sums)


@triton.jit
def _dot_bf16(x: tl.tensor, y: tl.tensor, sums: tl.tensor) -> tl.tensor:
    if x.dtype == tl.bfloat16:
        return dot(x, y, sums)
    else:
        high, middle, low = _three_parts(x.to(tl.float32))
        return dot(high, y, dot(middle, y, dot(low, y, sums)))


@triton.jit
def dot_rows(x: tl.tensor, y: tl.tensor, sums: tl.tensor) -> tl.tensor:
    """Compute sums + x y, y being rows as recorded (bf16 or fp16): every product is exact, sums are
    fp32."""
    if y.dtype == tl.bfloat16:
        return _dot_bf16(x, y, sums)
    else:
        wide = y.to(tl.float32)
        high = _truncated(wide)
        sums = _dot_bf16(x, (wide - high).to(tl.bfloat16), sums)
        return _dot_bf16(x, high.to(tl.bfloat16), sums)


@triton.jit
def dot_fp32(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """Compute x y, without the three products of parts that lie below the last bit of the others."""
    x1, x2, x3 = _three_parts(x)
    y1, y2, y3 = _three_parts(y)
    sums = tl.zeros([x.shape[0], y.shape[1]], dtype=tl.float32)
    sums = dot(x3, y1, dot(x2, y2, dot(x1, y3, sums)))
    return dot(x1, y1, dot(x2, y1, dot(x1, y2, sums)))


@triton.jit
def dot_rounded(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """Compute x y with y [ROWS, ROWS]: of 16 rows in plain fp32, which rounds where tensor cores
    truncate."""
    if y.shape[0] == 16:
        return tl.dot(x, y, input_precision="ieee")
    else:
        return dot_fp32(x, y)


@triton.jit
def places(ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the places s [ROWS, 1] and t [1, ROWS]."""
    return tl.arange(0, ROWS)[:, None], tl.arange(0, ROWS)[None, :]


@triton.jit
def row_decays(a: tl.tensor, A_log: tl.tensor, dt_bias: tl.tensor, here: tl.tensor) -> tl.tensor:
    """Return the decay of each row, [ROWS]: 1 where there is no row."""
    x = a.to(tl.float32) + dt_bias.to(tl.float32)
    softplus = tl.where(x <= THRESHOLD, tl.log(1 + tl.exp(x)), x)
    return tl.where(here, tl.exp(-tl.exp(A_log.to(tl.float32)) * softplus), 1.0)


@triton.jit
def decays_between(decays: tl.tensor) -> tl.tensor:
    """Return at [s, t] the decay of what row s wrote until row t, for s <= t. Each is a product of its
    own: quotients would overflow, and differences of sums of logarithms lose what lies after a row that
    forgets all."""
    s, t = places(decays.shape[0])
    return tl.cumprod(tl.where(s < t, decays[None, :], 1.0), 1)


@triton.jit
def column(matrix: tl.tensor, number: tl.tensor) -> tl.tensor:
    s, t = places(matrix.shape[0])
    return tl.sum(tl.where(t == number, matrix, 0.0), 1)


@triton.jit
def _widened(result: tl.tensor, strict: tl.tensor, bits: tl.tensor) -> tl.tensor:
    """Turn the inverses of diagonal blocks of 2^bits rows into those of blocks twice as wide."""
    s, t = places(strict.shape[0])
    corner = tl.where((s ^ t) >> bits == 1, -strict, 0.0)
    return result + dot_rounded(result, dot_rounded(corner, result))


@triton.jit
def inverse(strict: tl.tensor) -> tl.tensor:
    """Compute (1 + strict)^-1 for a strictly upper matrix of 16, 32 or 64 rows.

    [[P, B], [0, Q]]^-1 is [[P^-1, -P^-1 B Q^-1], [0, Q^-1]]: in steps from blocks of two rows to the
    whole. It sums only parts of inverses, none of them above 1 for betas up to 1: unlike
    powers of the matrix they do not cancel.
    """
    s, t = places(strict.shape[0])
    result = tl.where(s == t, 1.0, 0.0) - tl.where(s // 2 == t // 2, strict, 0.0)
    if strict.shape[0] == 64:  # its products side by side would not fit in registers
        for bits in tl.range(1, 6, num_stages=1):
            result = _widened(result, strict, bits)
    else:
        result = _widened(_widened(_widened(result, strict, 1), strict, 2), strict, 3)
        if strict.shape[0] == 32:
            result = _widened(result, strict, 4)
    return result
