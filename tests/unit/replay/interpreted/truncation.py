"""Tensor cores that truncate: what the interpreter, which rounds every fp32 sum to nearest, does not do.

Measurements of NVIDIA's tensor cores agree on this (Fasi et al., "Numerical behavior of NVIDIA tensor
cores", 2021; Li et al., arXiv 2403.00232): products are exact; those of a few terms and the accumulator
are shifted to the largest exponent among them, bits that fall off are dropped; the sum is cut to fp32
towards zero. How many terms (4 to 16) and how many bits more than fp32's 24 are kept (0 to 2 and more)
depends on the generation.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from vllm_eagle_ext.replay.ops import triton_chunked, triton_chunked_math

MANTISSA = 24  # bits of fp32


def towards_zero(x: np.ndarray) -> np.ndarray:
    """fp64 as fp32."""
    near = x.astype(np.float32)
    return np.where(np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, np.float32(0)), near)


def truncated_sums(
    x: np.ndarray, y: np.ndarray, sums: np.ndarray, *, terms: int, guard_bits: int = 0
) -> np.ndarray:
    """sums + x y, [M, K] by [K, N] with values of bf16, `terms` products at a time."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    for start in range(0, x.shape[1], terms):
        part = slice(start, start + terms)
        added = np.concatenate(
            [sums.astype(np.float64)[:, None], x[:, part, None] * y[None, part]], axis=1
        )
        _, exponent = np.frexp(np.abs(added).max(axis=1, keepdims=True))
        unit = np.ldexp(1.0, exponent - MANTISSA - guard_bits)
        sums = towards_zero((np.trunc(added / unit) * unit).sum(axis=1))
    return sums


def truncating_dot(
    terms: int, guard_bits: int
) -> Callable[[tl.tensor, tl.tensor, tl.tensor], tl.tensor]:
    """As `triton_chunked_math.dot`, under the interpreter."""

    def dot(x: tl.tensor, y: tl.tensor, sums: tl.tensor) -> tl.tensor:
        operands = (x.to(tl.float32), y.to(tl.float32), sums)
        total = truncated_sums(
            *(operand.handle.data for operand in operands), terms=terms, guard_bits=guard_bits
        )
        return tl.tensor(TensorHandle(total, tl.float32), sums.type)

    return dot


def truncate(monkeypatch: pytest.MonkeyPatch, *, terms: int = 8, guard_bits: int = 0) -> None:
    """Let every product of the chunked kernels that runs on tensor cores be summed so."""
    for module in (triton_chunked_math, triton_chunked):
        monkeypatch.setattr(module, "dot", truncating_dot(terms, guard_bits))
