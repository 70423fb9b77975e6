"""Drafts of which some modules are quantised and others plain, listed by the checkpoint's names: vLLM's
modules, loaded, against the reference with dequantised weights. With eight bits a CPU computes, too."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.checkpoints import LAYERS
from tests.support.drafting import BOUND_QUANTISED, apart_from_reference, load
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


def groups(*targets: str) -> dict[str, object]:
    return {"group_0": {"targets": list(targets) or ["Linear"], **GROUP}}


# By the numbers that the draft's layers have behind the target's, they are those of another model.
OTHERS = rf"re:.*layers\.({LAYERS}|{LAYERS + 1})\..*"
OWN = (r"re:.*layers\.[01]\.mlp\..*", *(f"midlayer.mlp.{part}" for part in MLP))
OF_OTHERS = {"targets": [OTHERS], "weights": FOUR_BITS}
# What is quantised, the groups, and what is ignored; None: each plain module.
LISTS = {
    "ignored beside attention": (ATTENTION, groups(), None),
    "ignored beside an mlp": (MLP, groups(), None),
    "nothing is ignored": (MLP, groups(), []),
    "one target": (MLP, groups("re:.*(gate|up|down)_proj$"), []),
    "three targets": (MLP, groups(*(f"re:.*{part}" for part in MLP)), []),
    "targets of other layers": (MLP, {**groups(*OWN), "another": OF_OTHERS}, []),
    "ignored other layers": (MLP, groups(), [OTHERS, "re:.*self_attn.*", "lm_head"]),
}


@pytest.mark.parametrize(("parts", "config_groups", "ignore"), LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_lists_by_the_checkpoints_names(family, parts, config_groups, ignore, tmp_path):
    draft = quantised(family, parts, config_groups=config_groups)
    ignored = plain_modules(draft) if ignore is None else ignore
    draft.config["quantization_config"]["ignore"] = ignored
    assert apart_from_reference(tmp_path, family, draft, dequantised(draft)) < BOUND_QUANTISED


@pytest.mark.parametrize("family", FAMILIES)
def test_without_the_names_weights_would_be_missing(family, monkeypatch, tmp_path):
    """Negative control: vLLM makes quantised modules of the plain ones."""
    monkeypatch.setattr(apply, "named_for_vllm", lambda case: case.config.quantization_config)
    draft = quantised(family, MLP, config_groups=groups())
    draft.config["quantization_config"]["ignore"] = plain_modules(draft)
    with pytest.raises((UnsupportedDraftError, AssertionError, KeyError, ValueError)):
        load(tmp_path, draft)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_classes_table_of_fused_modules_does_not_reach_the_draft(family, tmp_path):
    """As long as this holds, our classes need none of their own, and the lists name fused modules."""
    drafter, *_ = load(tmp_path, quantised(family, MLP, config_groups=groups(), ignore=[]))
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
