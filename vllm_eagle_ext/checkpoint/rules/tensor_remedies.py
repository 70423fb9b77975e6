# SPDX-License-Identifier: Apache-2.0
"""Says what to do about tensors that a draft lacks, or that its drafter does not compute with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vllm_eagle_ext.checkpoint.attention import SEPARATE_GATES
from vllm_eagle_ext.checkpoint.case import Case
from vllm_eagle_ext.checkpoint.foreign_drafts import ANOTHER, foreign_part, name_edit, own_architecture
from vllm_eagle_ext.checkpoint.read_spec import layers_in
from vllm_eagle_ext.checkpoint.registry import published

_DIGITS = 6  # of a layer's number; a longer one is no layer of any draft
_SCALES = ("scale", "scale_inv", "scale_2", "zero_point", "scales", "qzeros", "g_idx", "weight_shape")


def how_to_complete(case: Case, missing: list[str]) -> str:
    """Say what makes the files and the config agree, by what is missing."""
    download = "download all files of the draft"
    if all(name.endswith(".bias") for name in missing):
        biases = {name for name in case.files.tensors if name.endswith(".bias")}
        if any(".self_attn." in name for name in missing) and _attention_biases(biases) == _QKV:
            return _three_biases(case)
        keys = [key for key, part in _BIASES.items() if any(part in name for name in missing)]
        edit = ", ".join(f'"{key}": false' for key in keys)
        return f"if it was trained without biases, edit config.json: {edit}; otherwise {download}"
    held = layers_in(case.files)
    beyond = all(_layer(name) >= held for name in missing)
    if 0 < held < case.spec.num_layers and beyond:
        return f"if it was trained with {depth_edit(case.flat, held)}; otherwise {download}"
    if other := _another_architecture(case):
        return f"if its trainer computes the same, {name_edit(other)}; otherwise {download}"
    return f"{download}; if they are here, its trainer wrote a config of other layers: {ANOTHER}"


def _layer(name: str) -> int:
    """Return the layer that a tensor belongs to, or -1."""
    number = name.split(".")[1] if name.startswith("layers.") else ""
    if not number.isdecimal():
        return -1
    return int(number) if len(number) < _DIGITS else 10**_DIGITS


def depth_edit(flat: Mapping[str, Any], layers: int) -> str:
    """Return the edit of config.json that states a number of layers, in words that follow "with"."""
    number = f"{layers} layer" + "s" * (layers > 1)
    types = flat.get("layer_types")
    listed = f', "layer_types" with {layers} of its entries' if isinstance(types, list) else ""
    return f'{number}, edit config.json: "num_hidden_layers": {layers}{listed}'


def _another_architecture(case: Case) -> str | None:
    """Return the name of the drafter whose tensors these are, where it is not the draft's own."""
    fitting = own_architecture(case.files)
    return fitting if fitting and published().get(fitting) != case.spec.drafter else None


_QKV = frozenset("qkv")
_BIASES = {"attention_bias": ".self_attn.", "mlp_bias": ".mlp."}


def _attention_biases(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.rpartition("self_attn.")[2][0] for name in names if ".self_attn." in name)


def _biased(case: Case) -> frozenset[str]:
    """Return which projections have a bias with attention_bias: in vLLM's Qwen3 layer not o_proj."""
    spec = case.spec
    is_qwen3s = spec.drafter.backbone.norms_heads and spec.drafter.method == "eagle3"
    return _QKV if is_qwen3s else _QKV | {"o"}


def _three_biases(case: Case) -> str:
    """Say what becomes of biases of q, k and v where o_proj has none."""
    if _biased(case) == _QKV:
        return 'edit config.json: "attention_bias": true'
    return (
        f"vLLM's {case.spec.title} layer reads attention_bias, which asks for a bias of o_proj too, and "
        "would drop those of q, k and v without it: add an o_proj.bias of zeros to the file and "
        f'"attention_bias": true to config.json, or {ANOTHER}'
    )


def why_unexpected(case: Case, names: list[str]) -> str:
    """Say what a draft with further tensors is, by their names."""
    gates = tuple(f".self_attn.{gate}." for gate in SEPARATE_GATES) if case.spec.drafter.can_gate else ()
    foreign = [name for name in names if not any(gate in name for gate in gates)]
    if reason := foreign_part(foreign):
        return reason
    if other := _another_architecture(case):
        return f"if its trainer computes what {other} does, {name_edit(other)}; otherwise {ANOTHER}"
    if all(name.endswith(".bias") for name in names):
        return _why_biased(case, names)
    beyond = {_layer(name) for name in names if _layer(name) >= case.spec.num_layers}
    if beyond and all(_layer(name) in beyond for name in names):
        return f"if it was trained with {depth_edit(case.flat, max(beyond) + 1)}; otherwise {ANOTHER}"
    if case.spec.quantisation is None and all(name.endswith(_SCALES) for name in names):
        return "state how it is quantised: quantization_config in config.json, as its exporter wrote it"
    return (
        f"no drafter of vLLM computes with them: {ANOTHER}, or export it without them, if its trainer "
        "did not use them"
    )


def _why_biased(case: Case, names: list[str]) -> str:
    spec, config = case.spec, case.config
    attention = _attention_biases(names)
    is_attention = all(".self_attn." in name for name in names)
    if is_attention and attention == _biased(case) and not config.attention_bias:
        return 'edit config.json: "attention_bias": true'
    if is_attention and attention == _QKV:
        return _three_biases(case)
    is_mlp = all(".mlp." in name for name in names)
    if is_mlp and spec.drafter.backbone.has_mlp_bias and not config.mlp_bias and len(names) % 3 == 0:
        return 'edit config.json: "mlp_bias": true'
    return f"no drafter of vLLM computes these biases in such a draft: {ANOTHER}"
