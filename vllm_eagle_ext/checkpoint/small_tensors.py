# SPDX-License-Identifier: Apache-2.0
"""Values of small tensors, decoded without numpy or torch."""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass

_INTEGERS = {"I8": "b", "U8": "B", "BOOL": "B", "I16": "h", "U16": "H", "I32": "i", "I64": "q"}
# dtype -> (type code of equally wide integers, mask of the exponent's bits)
_EXPONENTS = {
    "BF16": ("H", 0x7F80),
    "F16": ("H", 0x7C00),
    "F32": ("I", 0x7F800000),
    "F64": ("Q", 0x7FF0000000000000),
}


@dataclass(frozen=True, slots=True)
class Survey:
    """Holds the values of one tensor of floating point. Packed and integer ones have only `is_zero`."""

    is_zero: bool
    non_finite: int = 0  # infinite or NaN
    largest: float = 0.0  # magnitude of the finite ones
    rms: float = 0.0  # root of the mean square of the finite ones


def integers(raw: bytes, dtype: str) -> tuple[int, ...] | None:
    """Return the integers in a tensor's bytes; None for a dtype that holds none."""
    code = _INTEGERS.get(dtype)
    return None if code is None else tuple(_little_endian(code, raw))


def non_finite(raw: bytes, dtype: str) -> int:
    """Say how many values are infinite or NaN; 0 for dtypes that have none."""
    if dtype not in _EXPONENTS:
        return 0
    code, exponent = _EXPONENTS[dtype]
    return sum(bits & exponent == exponent for bits in _little_endian(code, raw))


def _little_endian(code: str, raw: bytes) -> array[int]:
    values: array[int] = array(code)
    values.frombytes(raw)
    if sys.byteorder == "big":
        values.byteswap()
    return values
