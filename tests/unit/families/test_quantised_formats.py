"""Every format of quantised weights through vLLM's modules: what a CPU computes, against the reference
with dequantised weights; what it cannot compute, loaded and compared weight by weight.

A CPU lacks kernels for NVFP4 and MXFP8: vLLM's emulation stands in for them here.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from safetensors.torch import load_file

from tests.support.drafter import construct
from tests.support.drafting import apart_from_reference, dtype_of, load, resolve_draft
from tests.support.drafts import VLLMS
from tests.support.quantised_drafts import FORMATS, decoded, quantised_draft
from vllm_eagle_ext.errors import UnsupportedDraftError
from vllm_eagle_ext.start import apply

pytestmark = pytest.mark.usefixtures("emulated")
FAMILIES = ("native", "gated", "mla", "qwen3", "dflash")  # whose logits the one reference computes
# Of `difference`: in bf16, and where activations are rounded to eight bits as well.
BOUNDS = {
    "compressed-tensors W8A8": 0.15,
    "compressed-tensors W4A16": 0.05,
    "compressed-tensors W4A16, zero points": 0.05,
    "compressed-tensors MXFP8": 0.05,
    "AWQ": 0.05,
    "GPTQ": 0.05,
}
BY_WEIGHT = tuple(format_ for format_ in FORMATS if format_ not in BOUNDS)
# Rows of a gated q_proj cannot be moved where one int32 holds several of them.
REFUSED = [("gated", "compressed-tensors W4A16, zero points"), ("gated", "AWQ"), ("gated", "GPTQ")]
# On a GPU alone.
NO_KERNEL = "compressed-tensors NVFP4A16"


@pytest.mark.parametrize(
    ("family", "format_"), [p for p in itertools.product(FAMILIES, BOUNDS) if p not in REFUSED]
)
def test_drafts_as_dequantised(family, format_, tmp_path):
    pair = quantised_draft(family, format_)
    assert apart_from_reference(tmp_path, family, pair.draft, pair.dequantised) < BOUNDS[format_]


@pytest.mark.parametrize("format_", BY_WEIGHT)
@pytest.mark.parametrize("family", [*FAMILIES, *VLLMS])
def test_weights_as_dequantised(family, format_, request, tmp_path):
    """Each module's, fused ones among them."""
    if format_ == NO_KERNEL:
        request.getfixturevalue("nvfp4a16")
    pair = quantised_draft(family, format_)
    drafters = []
    for name, draft in (("quantised", pair.draft), ("plain", pair.dequantised)):
        config, path = resolve_draft(tmp_path / name, draft)
        drafter = construct(config, dtype_of(pair.draft))
        drafter.load_weights(iter(load_file(path / "model.safetensors").items()))
        drafters.append(drafter)
    compared = 0
    for name, module in drafters[0].named_modules():
        if (mine := decoded(module)) is not None:
            weight = drafters[1].get_submodule(name).weight
            assert torch.allclose(mine, weight.float(), rtol=2**-7, atol=1e-6), name
            compared += 1
    layers = len(drafters[0].model.layers)
    assert compared == (6 if family == "mla" else 4) * layers


def test_a_format_without_a_kernel_for_a_cpu_says_so(tmp_path):
    """vLLM's own words; where it has one, its layers are to be run."""
    with pytest.raises(ValueError, match="Forced NVFP4 kernel .* is not supported"):
        load(tmp_path, quantised_draft("native", NO_KERNEL).draft)


@pytest.mark.parametrize(("family", "format_"), REFUSED)
def test_gates_whose_rows_cannot_be_moved(family, format_, tmp_path):
    with pytest.raises(UnsupportedDraftError, match="plain weights"):
        resolve_draft(tmp_path, quantised_draft(family, format_).draft)


def test_names_of_the_checkpoint_alone_leave_a_gptq_draft_plain(monkeypatch, tmp_path):
    """Negative control: vLLM lists the quantised tensors of the file, and looks for its own names."""
    monkeypatch.setattr(apply, "named_for_vllm", lambda case: case.config.quantization_config)
    with pytest.raises((ValueError, UnsupportedDraftError, KeyError)):
        load(tmp_path, quantised_draft("native", "GPTQ").draft)
