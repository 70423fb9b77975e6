# SPDX-License-Identifier: Apache-2.0
"""One name per tensor, whatever the publisher's prefix or spelling, and the values of small tensors,
decoded without numpy or torch.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass

# Published spelling -> canonical one. `model.` and `midlayer.` stand for nothing and for layer 0.
_PREFIXES = (
    ("model.", ""),
    ("midlayer.", "layers.0."),
    ("encoder.output_norm_enc.", "hidden_norm."),
    ("encoder.fc.", "fc."),
    ("aux_norm_low.", "fc_norm.0."),
    ("aux_norm_mid.", "fc_norm.1."),
    ("aux_norm_high.", "fc_norm.2."),
)
_WHOLE = {"draft_id_to_target_id": "d2t"}

# Constants that some exporters write; every engine computes them itself.
COMPUTED = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")

# These hold the weights of a module, quantised or not; scales and zero points are no weights.
HOLDS_WEIGHTS = ("weight", "weight_packed", "qweight")


def canonical_name(name: str) -> str:
    for published, canonical in _PREFIXES:
        if name.startswith(published):
            name = canonical + name.removeprefix(published)
    return _WHOLE.get(name, name)


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
