"""docs/quantised_drafts.md: its computed columns, and the sizes that they are computed with."""

from __future__ import annotations

import pytest

from tests import quantised_page
from tests.quantised_page import SIZES
from tests.support.drafts import valid_draft
from tests.support.quantised_drafts import FORMATS, GROUP, quantised

# Formats as they are made for the tests, by the page's names.
MADE = {
    **{name: name for name in FORMATS if name in SIZES},
    "compressed-tensors W8A8 (int8)": "compressed-tensors W8A8",
    "compressed-tensors W4A16, symmetric, groups of 128": "compressed-tensors W4A16",
    "compressed-tensors W4A16 with zero points": "compressed-tensors W4A16, zero points",
    "compressed-tensors FP8, static or dynamic": "compressed-tensors FP8, dynamic",
    "`fp8` of vLLM, static or dynamic": "fp8",
    "ModelOpt FP8": "modelopt FP8",
    "ModelOpt NVFP4": "modelopt NVFP4",
}
_A_MODULES = 24  # bytes of a shape or of scales of the whole, and zero points that are padded


@pytest.mark.parametrize("name", MADE)
def test_sizes_are_those_of_the_tensors(name, monkeypatch):
    monkeypatch.setattr(quantised_page, "_GROUP", GROUP)
    pair = quantised(valid_draft("qwen3"), MADE[name])
    plain_weights = pair.dequantised.tensors
    modules = [weight for weight in plain_weights if weight.endswith("_proj.weight")]
    made = {key: tensor for key, tensor in pair.draft.tensors.items() if "_proj." in key}
    size = sum(SIZES[name](*plain_weights[weight].shape) for weight in modules)
    stored = sum(tensor.numel() * tensor.element_size() for tensor in made.values())
    assert size == pytest.approx(stored, abs=_A_MODULES * len(modules))
