# SPDX-License-Identifier: Apache-2.0
"""Reads every value of a draft's tensors, a chunk at a time, without torch. Needs numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from vllm_eagle_ext.draft.headers import TensorHeader
from vllm_eagle_ext.draft.sources import Source, read_exactly
from vllm_eagle_ext.draft.tensors import Survey

_CHUNK = 16 * 2**20  # bytes; a multiple of every element's size
_FLOATS = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
# Dtype of 8-bit floats -> the bytes, without their sign, that are infinite or NaN.
_NON_FINITE_8_BIT = {"F8_E4M3": (0x7F,), "F8_E5M2": tuple(range(0x7C, 0x80))}


def survey_tensors(
    source: Source, tensors: Mapping[str, TensorHeader], on_values: Callable[[int, int], None]
) -> dict[str, Survey]:
    """Survey each tensor, by canonical name.

    Args:
        on_values: told of the bytes read so far, and of all.

    Raises:
        UnsupportedDraftError: a file that cannot be read.
    """
    total, read, found = sum(header.size for header in tensors.values()), 0, {}
    for name, header in tensors.items():
        parts = _Parts()
        for chunk in _chunks(source, header):
            parts.add(chunk, header.dtype)
            read += len(chunk)
            on_values(read, total)
        found[name] = parts.survey()
    return found


def _chunks(source: Source, header: TensorHeader) -> Iterator[bytes]:
    for start in range(0, header.size, _CHUNK):
        size = min(_CHUNK, header.size - start)
        yield read_exactly(source, header.file, header.start + start, size)


class _Parts:
    """Sums over the chunks of one tensor."""

    def __init__(self) -> None:
        self._is_zero = True
        self._non_finite = self._count = 0
        self._largest = self._squares = 0.0

    def add(self, chunk: bytes, dtype: str) -> None:
        raw = np.frombuffer(chunk, np.uint8)
        values = _floats(chunk, dtype)
        if values is None:
            self._is_zero = self._is_zero and not raw.any()
            if dtype in _NON_FINITE_8_BIT:
                self._non_finite += int(np.isin(raw & 0x7F, _NON_FINITE_8_BIT[dtype]).sum())
            return
        finite = np.isfinite(values)
        bad = int(values.size - np.count_nonzero(finite))
        self._non_finite += bad
        kept = values[finite] if bad else values
        self._is_zero = self._is_zero and not bad and not kept.any()
        if kept.size:
            self._largest = max(self._largest, float(np.abs(kept).max()))
            self._squares += float(np.square(kept, dtype=np.float64).sum())
            self._count += kept.size

    def survey(self) -> Survey:
        rms = math.sqrt(self._squares / self._count) if self._count else 0.0
        return Survey(self._is_zero, self._non_finite, self._largest, rms)


def _floats(chunk: bytes, dtype: str) -> npt.NDArray[np.floating] | None:
    """Return the values of a chunk as floats.

    None: they are integers, packed or of 8 bits, whose size says nothing without their scales.
    """
    if dtype == "BF16":  # the upper half of a float32
        return (np.frombuffer(chunk, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(chunk, _FLOATS[dtype]) if dtype in _FLOATS else None
