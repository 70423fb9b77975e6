"""Formats of quantised weights: blocks by their headers, and what vLLM is told that is left plain."""

from __future__ import annotations

import pytest
import torch

from tests.support.checkpoints import HIDDEN, INTER, LAYERS
from tests.support.drafts import inspect, valid_draft
from tests.support.quantised_drafts import quantised_draft
from vllm_eagle_ext.draft.quantisation import named_for_vllm


@pytest.mark.parametrize("suffix", ["weight_scale", "weight_scale_inv"])
@pytest.mark.parametrize("rows", [1, 4, 3])  # of 64: for all, and of blocks, the last of them shorter
def test_scales_of_blocks(tmp_path, rows, suffix):
    draft = valid_draft("quantised")
    del draft.tensors["midlayer.mlp.down_proj.weight_scale"]
    draft.tensors[f"midlayer.mlp.down_proj.{suffix}"] = torch.ones(rows, 1)
    draft.tensors["midlayer.mlp.down_proj.weight"] = torch.ones(HIDDEN, INTER).to(torch.float8_e4m3fn)
    assert inspect(draft, tmp_path).findings == ()


FC = "model.fc"


@pytest.fixture
def written(tmp_path):
    """What vLLM gets of a draft in this format with other keys of its quantisation; None: without."""

    def write(format_, **changes):
        draft = quantised_draft("native", format_).draft
        config = draft.config["quantization_config"] | changes
        draft.config["quantization_config"] = {k: v for k, v in config.items() if v is not None}
        inspection = inspect(draft, tmp_path)
        assert inspection.findings == ()
        return named_for_vllm(inspection.case)

    return write


@pytest.mark.parametrize(
    ("format_", "key", "listed"),
    [
        ("fp8", "ignored_layers", None),
        ("fp8", "ignored_layers", ["fc"]),  # a part of a name
        ("AWQ", "modules_to_not_convert", ["lm_head"]),
        ("AWQ", "modules_to_not_convert", ["*fc"]),  # it knows no patterns
        ("compressed-tensors NVFP4", "ignore", ["re:.*head"]),
        ("modelopt NVFP4", "exclude_modules", ["fc?"]),
    ],
)
def test_a_plain_fc_is_left_out_whatever_the_list_says(written, format_, key, listed):
    names = written(format_, **{key: listed})["ignore" if key == "exclude_modules" else key]
    assert {FC, *(name for name in listed or () if not name.startswith("re:"))} <= set(names)
    # Of patterns vLLM gets the names of the modules that they fit.
    assert not [name for name in names if name.startswith("re:")]
    assert listed != ["re:.*head"] or "lm_head" in names


@pytest.mark.parametrize("entry", ["model.layers.3*", "layers.0", r"re:model\.layers\.3.*"])
def test_entries_with_a_layers_number_are_dropped(written, entry):
    """At run time the draft's layers are numbered behind the target's: 30 to 39 begin with a 3."""
    names = written("modelopt FP8", ignore=[entry, "lm_head"])["ignore"]
    assert entry not in names
    assert {"lm_head", FC} <= set(names)


def test_a_plain_head_is_left_out(written):
    """ModelOpt's method quantises heads, too."""
    assert "lm_head" in written("modelopt FP8", ignore=[])["ignore"]


def test_older_files_of_modelopt(written):
    nested = {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    block = written("modelopt FP8", quant_algo=None, ignore=None, quantization=nested)["quantization"]
    assert block["quant_algo"] == "FP8"
    assert FC in block["exclude_modules"]


def test_what_gptq_quantises_is_listed(written):
    listed = set(written("GPTQ", dynamic=None)["modules_in_block_to_quantize"])
    names = {"self_attn.qkv_proj", "self_attn.q_proj", "self_attn.o_proj", "mlp.gate_up_proj"}
    assert {f"model.layers.{LAYERS}.{name}" for name in names} <= listed
    assert FC not in listed
