# SPDX-License-Identifier: Apache-2.0
"""One name per tensor, whatever the publisher's prefix or spelling, and the values of small tensors,
decoded without torch.
"""

from __future__ import annotations

import struct

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
_WHOLE = {"draft_id_to_target_id": "d2t"}  # vLLM's parameter, too

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
# dtype -> (type code of equally wide integers, the bits that are all set in what is infinite or NaN)
_NOT_FINITE = {
    "F8_E4M3": ("B", 0x7F), "F8_E5M2": ("B", 0x7C), "BF16": ("H", 0x7F80), "F16": ("H", 0x7C00),
    "F32": ("I", 0x7F800000), "F64": ("Q", 0x7FF0000000000000),
}  # fmt: skip
_FEW = 2**17  # bytes, which are counted before numpy is imported


def integers(raw: bytes, dtype: str) -> tuple[int, ...] | None:
    """Return the integers in a tensor's bytes; None for a dtype that holds none."""
    code = _INTEGERS.get(dtype)
    return None if code is None else tuple(value for (value,) in struct.iter_unpack(f"<{code}", raw))


def count_non_finite(raw: bytes, dtype: str) -> int:
    """Count the values that are infinite or NaN; 0 for dtypes that have none."""
    if dtype not in _NOT_FINITE:
        return 0
    code, mask = _NOT_FINITE[dtype]
    if len(raw) <= _FEW:
        return sum(bits & mask == mask for (bits,) in struct.iter_unpack(f"<{code}", raw))
    import numpy as np

    bits = np.frombuffer(raw, np.dtype(code).newbyteorder("<"))
    return int(np.count_nonzero(bits & bits.dtype.type(mask) == mask))
