"""Quantised drafts of which `fc` or the head is quantised as well, against the reference with
dequantised weights, and heads that vLLM's classes cannot hold."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from tests.support.checkpoints import HIDDEN, VOCAB
from tests.support.draft_families import matrix
from tests.support.drafter import construct
from tests.support.drafting import apart_from_reference, dtype_of, load, resolve_draft
from tests.support.drafts import Draft, valid_draft
from tests.support.quantised_drafts import decoded, quantised
from vllm_eagle_ext.errors import UnsupportedDraftError
from vllm_eagle_ext.start import apply

pytestmark = pytest.mark.usefixtures("emulated")
W8A8, W4A16 = "compressed-tensors W8A8", "compressed-tensors W4A16"
BOUNDS = {W8A8: 0.15, W4A16: 0.05, "AWQ": 0.05, "GPTQ": 0.05}  # as of the layers alone
FAMILIES = ("native", "qwen3", "gated", "mla", "dflash")
PACKED_GATE = [("gated", "AWQ"), ("gated", "GPTQ")]  # refused, see test_quantised_formats.py
HEADED = ("native", "qwen3", "gated")  # whose classes build a quantised head


def with_head(family: str) -> Draft:
    draft = valid_draft(family)
    draft.tensors.setdefault("lm_head.weight", matrix(VOCAB, HIDDEN))
    return draft


def check(family: str, draft: Draft, format_: str, part: str, folder) -> None:
    pair = quantised(draft, format_, part)
    name = next(name for name in draft.tensors if name.endswith(f"{part}.weight"))
    assert pair.draft.tensors.get(name, torch.empty(0, dtype=torch.int8)).dtype == torch.int8
    assert apart_from_reference(folder, family, pair.draft, pair.dequantised) < BOUNDS[format_]


@pytest.mark.parametrize(
    ("family", "format_"),
    [(name, format_) for name in FAMILIES for format_ in BOUNDS if (name, format_) not in PACKED_GATE],
)
def test_fc(family, format_, tmp_path):
    check(family, valid_draft(family), format_, "fc", tmp_path)


@pytest.mark.parametrize("format_", [W8A8, W4A16])
@pytest.mark.parametrize("family", HEADED)
def test_heads_that_are_linear_modules_for_the_compressor(family, format_, tmp_path):
    check(family, with_head(family), format_, "lm_head", tmp_path)


@pytest.mark.parametrize(
    "format_", ["compressed-tensors FP8, dynamic", "modelopt FP8", "modelopt NVFP4"]
)
@pytest.mark.parametrize("family", HEADED)
def test_heads_that_a_cpu_cannot_compute_with(family, format_, tmp_path):
    """Their weights, without the rows that vLLM pads them with."""
    pair = quantised(with_head(family), format_, "lm_head")
    config, path = resolve_draft(tmp_path, pair.draft)
    drafter = construct(config, dtype_of(pair.draft))
    drafter.load_weights(iter(load_file(path / "model.safetensors").items()))
    weight = pair.dequantised.tensors["lm_head.weight"].float()
    mine = decoded(drafter.lm_head)
    assert mine is not None
    assert torch.allclose(mine[: len(weight)], weight, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("family", HEADED)
def test_heads_are_no_linear_modules_for_vllm(family, monkeypatch, tmp_path):
    """Negative control: the group's target is "Linear"."""
    named = apply.named_for_vllm
    monkeypatch.setattr(
        apply,
        "named_for_vllm",
        lambda case: named(case) | {"config_groups": case.config.quantization_config["config_groups"]},
    )
    with pytest.raises(ValueError, match=r"lm_head\.weight"):
        load(tmp_path, quantised(with_head(family), W8A8, "lm_head").draft)


@pytest.mark.parametrize(
    ("family", "format_"),
    [("mla", W8A8), ("dflash", W4A16), ("native", "AWQ"), ("qwen3", "GPTQ"), ("dflash", "GPTQ")],
)
def test_heads_that_have_no_place(family, format_, tmp_path):
    draft = quantised(with_head(family), format_, "lm_head").draft
    draft.config["quantization_config"]["lm_head"] = True  # as AWQ's and GPTQ's tools write it
    with pytest.raises(UnsupportedDraftError, match="a quantisation that leaves out.*lm_head"):
        load(tmp_path, draft)
