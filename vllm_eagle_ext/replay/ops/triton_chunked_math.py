# SPDX-License-Identifier: Apache-2.0
"""Parts of the chunked kernels: exact splits of fp32 for tensor cores, gates, and a triangular inverse.

All matrices over the rows of a chunk are transposed, [s, t] with s the earlier row, because the state is
the left operand of every product with it: [value rows, key width].
"""

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

CHUNK: tl.constexpr = tl.constexpr(16)  # rows of a chunk: the least width of a tensor core's product
THRESHOLD: tl.constexpr = tl.constexpr(20.0)  # above it softplus(x) is x
FORGOTTEN: tl.constexpr = tl.constexpr(-1000.0)  # exp of it is 0 in fp32


@triton.jit
def truncated(x: tl.tensor) -> tl.tensor:
    """fp32 with the mantissa of bf16: the upper half of the bits."""
    return (x.to(tl.uint32, bitcast=True) & 0xFFFF0000).to(tl.float32, bitcast=True)


@triton.jit
def split(x: tl.tensor):  # type: ignore[no-untyped-def]
    """Three bf16 tensors whose sum is x, to the last bit: 3 x 8 bits of mantissa."""
    high = truncated(x)
    rest = x - high
    middle = truncated(rest)
    return high.to(tl.bfloat16), middle.to(tl.bfloat16), (rest - middle).to(tl.bfloat16)


@triton.jit
def dot_exact(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """x y for y in bf16, accumulated in fp32 from exact products, whether x is bf16 or fp32."""
    if x.dtype == tl.bfloat16:
        return tl.dot(x, y)
    else:
        high, middle, low = split(x)
        return tl.dot(high, y, tl.dot(middle, y, tl.dot(low, y)))


@triton.jit
def dot_split(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """x y in fp32: without the three products of parts that lie below its last bit."""
    x1, x2, x3 = split(x)
    y1, y2, y3 = split(y)
    small = tl.dot(x3, y1, tl.dot(x2, y2, tl.dot(x1, y3)))
    return tl.dot(x1, y1, tl.dot(x2, y1, tl.dot(x1, y2, small)))


@triton.jit
def log_decays(a: tl.tensor, A_log: tl.tensor, dt_bias: tl.tensor) -> tl.tensor:
    x = a.to(tl.float32) + dt_bias.to(tl.float32)
    softplus = tl.where(x <= THRESHOLD, tl.log(1 + tl.exp(x)), x)
    return tl.maximum(-tl.exp(A_log.to(tl.float32)) * softplus, FORGOTTEN)


@triton.jit
def _widened(result: tl.tensor, strict: tl.tensor, WIDTH: tl.constexpr) -> tl.tensor:
    """From the inverses of diagonal blocks of WIDTH to those of blocks twice as wide."""
    s, t = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    block = (s // WIDTH != t // WIDTH) & (s // (2 * WIDTH) == t // (2 * WIDTH))
    right = tl.dot(tl.where(block, -strict, 0.0), result, input_precision="ieee")
    return tl.dot(result, right, result, input_precision="ieee")


@triton.jit
def inverse(strict: tl.tensor) -> tl.tensor:
    """(1 + strict)^-1 for a strictly upper [CHUNK, CHUNK] matrix.

    [[P, B], [0, Q]]^-1 is [[P^-1, -P^-1 B Q^-1], [0, Q^-1]]: in three steps from blocks of two rows to the
    whole. What is summed are parts of inverses alone, none of them above 1 for betas up to 1: unlike
    powers of the matrix they do not cancel.
    """
    s, t = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    pairs = tl.where(s == t, 1.0, 0.0) - tl.where(s // 2 == t // 2, strict, 0.0)
    return _widened(_widened(_widened(pairs, strict, 2), strict, 4), strict, 8)
