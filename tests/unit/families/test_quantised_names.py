"""Drafts of which some modules are quantised and others plain, listed by the checkpoint's names: vLLM's
modules, loaded, against the reference with dequantised weights. With eight bits a CPU computes, too."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.checkpoints import LAYERS
from tests.support.drafting import (
    BOUND_QUANTISED,
    apart_from_reference,
    load,
)
from tests.support.drafts import Draft, valid_draft
from vllm_eagle_ext.errors import UnsupportedDraftError
from vllm_eagle_ext.start import apply

SCHEME = {"num_bits": 8, "type": "int", "symmetric": True}
GROUP = {
    "weights": {**SCHEME, "strategy": "channel", "dynamic": False},
    "input_activations": {**SCHEME, "strategy": "token", "dynamic": True},
}
FOUR_BITS = {**SCHEME, "num_bits": 4, "strategy": "group", "group_size": 32}
ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
FAMILIES = ("native", "qwen3", "dflash")


def quantised(family: str, parts: tuple[str, ...], **config: object) -> Draft:
    """A valid draft of which these projections have eight bits."""
    draft = valid_draft(family)
    names = [name for name in draft.tensors if name.endswith(tuple(f"{part}.weight" for part in parts))]
    for name in names:
        weight = draft.tensors[name].float()
        scale = weight.abs().amax(dim=1, keepdim=True) / 127
        draft.tensors[name] = (weight / scale).round().to(torch.int8)
        draft.tensors[f"{name}_scale"] = scale
    draft.config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "int-quantized", **config,
    }  # fmt: skip
    return draft


def plain_modules(draft: Draft) -> list[str]:
    """As the checkpoint names them."""
    return [
        name.removesuffix(".weight")
        for name, tensor in draft.tensors.items()
        if name.endswith(".weight") and tensor.ndim == 2 and tensor.dtype != torch.int8
    ]


@pytest.mark.parametrize("parts", [ATTENTION, MLP], ids=["attention", "mlp"])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_ignore_list_by_the_checkpoints_names(family, parts, tmp_path):
    draft = quantised(family, parts, config_groups={"group_0": {"targets": ["Linear"], **GROUP}})
    draft.config["quantization_config"]["ignore"] = plain_modules(draft)
    check(family, draft, tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_empty_ignore_list(family, tmp_path):
    group = {"targets": ["Linear"], **GROUP}
    check(family, quantised(family, MLP, config_groups={"group_0": group}, ignore=[]), tmp_path)


@pytest.mark.parametrize(
    "targets", [["re:.*(gate|up|down)_proj$"], [f"re:.*{part}" for part in MLP]], ids=["one", "three"]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_targets_by_the_checkpoints_names(family, targets, tmp_path):
    group = {"targets": targets, **GROUP}
    check(family, quantised(family, MLP, config_groups={"group_0": group}, ignore=[]), tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_targets_of_layers_that_the_draft_has_not(family, tmp_path):
    """By the numbers that its layers have behind the target's."""
    others = {"targets": [rf"re:.*layers\.({LAYERS}|{LAYERS + 1})\..*"], "weights": FOUR_BITS}
    own = {
        "targets": [r"re:.*layers\.[01]\.mlp\..*", *(f"midlayer.mlp.{part}" for part in MLP)],
        **GROUP,
    }
    groups = {"group_0": others, "group_1": own}
    check(family, quantised(family, MLP, config_groups=groups, ignore=[]), tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_ignored_layers_that_the_draft_has_not(family, tmp_path):
    """Patterns that fit what is quantised by the numbers that its layers have behind the target's."""
    group = {"targets": ["Linear"], **GROUP}
    draft = quantised(family, MLP, config_groups={"group_0": group})
    others = rf"re:.*layers\.({LAYERS}|{LAYERS + 1})\..*"
    draft.config["quantization_config"]["ignore"] = [others, "re:.*self_attn.*", "lm_head"]
    check(family, draft, tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_the_names_weights_would_be_missing(family, monkeypatch, tmp_path):
    """Negative control: vLLM makes quantised modules of the plain ones."""
    monkeypatch.setattr(apply, "named_for_vllm", lambda case: case.config.quantization_config)
    draft = quantised(family, MLP, config_groups={"group_0": {"targets": ["Linear"], **GROUP}})
    draft.config["quantization_config"]["ignore"] = plain_modules(draft)
    with pytest.raises((UnsupportedDraftError, AssertionError, KeyError, ValueError)):
        load(tmp_path, draft)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_classes_table_of_fused_modules_does_not_reach_the_draft(family, tmp_path):
    """As long as this holds, our classes need none of their own, and the lists name fused modules."""
    group = {"targets": ["Linear"], **GROUP}
    drafter, *_ = load(tmp_path, quantised(family, MLP, config_groups={"group_0": group}, ignore=[]))
    method = drafter.model.layers[0].mlp.down_proj.quant_method
    assert "gate_up_proj" in type(drafter).packed_modules_mapping  # inherited from the target's class
    assert method.quantization_config.packed_modules_mapping == {}


def dequantised(draft: Draft) -> Draft:
    tensors = {name: tensor for name, tensor in draft.tensors.items() if not name.endswith("_scale")}
    for name, tensor in tensors.items():
        if tensor.dtype == torch.int8:
            tensors[name] = tensor * draft.tensors[f"{name}_scale"]
    config = {key: value for key, value in draft.config.items() if key != "quantization_config"}
    return replace(draft, config=config, tensors=tensors)


def check(family: str, draft: Draft, folder) -> None:
    assert apart_from_reference(folder, family, draft, dequantised(draft)) < BOUND_QUANTISED
