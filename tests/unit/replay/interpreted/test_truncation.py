"""The chunked kernels where tensor cores truncate: sums that carry a state must not drift."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.unit.replay.cases import Shape
from tests.unit.replay.interpreted.exactness import FACTOR, compare_chain
from tests.unit.replay.interpreted.truncation import towards_zero, truncate, truncated_sums
from vllm_eagle_ext.replay.ops import triton_chunked as kernels
from vllm_eagle_ext.replay.ops import triton_chunked_math as math
from vllm_eagle_ext.replay.ops.types import Gating

LONG_MEMORY = Gating(torch.full((2,), -6.0), torch.zeros(2).bfloat16())


def test_a_sum_is_cut_and_not_rounded():
    x, y = np.full((1, 8), 1.0), np.full((8, 1), 1.0)
    assert truncated_sums(x, y, np.float32([[2.0**23]]), terms=8)[0, 0] == 2.0**23 + 8
    x[0, :] = 0.75  # below the last bit of the sum
    assert truncated_sums(x, y, np.float32([[2.0**23]]), terms=8)[0, 0] == 2.0**23
    assert truncated_sums(x, y, np.float32([[2.0**23]]), terms=8, guard_bits=2)[0, 0] == 2.0**23 + 6
    assert towards_zero(np.array([1 + 1.9 * 2.0**-23]))[0] == np.float32(1 + 2.0**-23)


@pytest.mark.full
@pytest.mark.parametrize("T", [8, 16])
def test_a_chain_with_sums_that_are_cut(monkeypatch, T):
    truncate(monkeypatch)
    shape = Shape(T=T, H=1, HV=2, DK=128, DV=16)
    errors, _ = compare_chain(shape, requests=1, steps=6, last=6)
    errors.check(shape)


@pytest.mark.long
@pytest.mark.parametrize("gating", [None, LONG_MEMORY], ids=["random gates", "long memory"])
@pytest.mark.parametrize("T", [8, 16])
def test_a_chain_of_256_steps_with_sums_that_are_cut(monkeypatch, T, gating):
    truncate(monkeypatch)
    shape = Shape(T=T, H=1, HV=2, DK=128, DV=16)
    errors, _ = compare_chain(shape, requests=1, steps=256, gating=gating, last=64)
    print(f"\n{errors.ratio('outputs', shape.model):.3f} {errors.ratio('states', shape.state):.3f}")
    errors.check(shape)


@pytest.mark.full
def test_what_rows_write_would_suffer_on_tensor_cores(monkeypatch):
    """Control: the sums that a commit adds to a state, as tensor cores would form them."""
    truncate(monkeypatch)
    monkeypatch.setattr(kernels, "dot_rounded", math.dot_fp32)
    errors, _ = compare_chain(Shape(T=16, H=1, HV=2, DK=128, DV=16), requests=1, steps=6, last=6)
    assert errors.ratio("states", torch.float32) > FACTOR
