"""Drafts in the formats of quantised weights: by compressed-tensors' compressor, others by formula."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from tests.support.drafts import Draft, valid_draft

GROUP = 32  # columns that share a scale, where the format leaves their number open
_BLOCK4 = 16  # of NVFP4
_NIBBLES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])  # magnitudes of a four-bit float
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_E4M3 = 448.0

Tensors = dict[str, torch.Tensor]
# A weight [N, K] -> what a checkpoint holds for it, by suffix, and the weight that it stands for.
Encode = Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]


@dataclass(frozen=True)
class Quantised:
    draft: Draft
    dequantised: Draft


def quantised_draft(family: str, format_: str) -> Quantised:
    """A valid draft whose layers' projections have this format; its other modules stay plain."""
    return quantised(valid_draft(family), format_)


def quantised(draft: Draft, format_: str, *more: str) -> Quantised:
    """The projections of a draft's layers, and what else ends with one of these names."""
    ends = ("_proj.weight", "_mqa.weight", *(f"{name}.weight" for name in more))
    names = [
        name for name, tensor in draft.tensors.items()
        if name.endswith(ends) and (_fits(tensor) or format_ not in BY_32)
    ]  # fmt: skip
    plain = [
        name.removesuffix(".weight")
        for name, tensor in draft.tensors.items()
        if name.endswith(".weight") and tensor.ndim == 2 and name not in names
    ]
    if format_ in PRESETS:
        return _compressed(draft, names, plain, PRESETS[format_])
    encode, config = FORMULAS[format_]
    return _by_formula(draft, names, encode, config(plain))


def gptq_draft(draft: Draft, groups: Mapping[str, int | None], rules: dict[str, Any]) -> Quantised:
    """In GPTQ's format, with rules.

    Args:
        groups: pattern of a weight's name -> columns that share a scale; None: it stays plain. Others
            have `GROUP`.
    """
    config = {
        "quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True,
        "dynamic": rules,
    }  # fmt: skip
    tensors, values = dict(draft.tensors), dict(draft.tensors)
    for name in [name for name in tensors if name.endswith(("_proj.weight", "_mqa.weight"))]:
        sizes = [size for pattern, size in groups.items() if re.search(pattern, name)]
        group = sizes[0] if sizes else GROUP
        if group is None or not _fits(draft.tensors[name]):
            continue
        part = _by_formula(replace(draft, tensors={name: tensors.pop(name)}), [name],
                           partial(_gptq, group=group), config)  # fmt: skip
        tensors |= part.draft.tensors
        values |= part.dequantised.tensors
    quantised = draft.config | {"quantization_config": config}
    return Quantised(replace(draft, config=quantised, tensors=tensors), replace(draft, tensors=values))


def _fits(weight: torch.Tensor) -> bool:
    """Of whole groups, as vLLM's kernels of a CPU take them."""
    return not any(size % GROUP for size in weight.shape)


def _by_formula(draft: Draft, names: Iterable[str], encode: Encode, config: dict[str, Any]) -> Quantised:
    tensors, plain = dict(draft.tensors), dict(draft.tensors)
    for name in names:
        weight = tensors.pop(name)
        saved, stands_for = encode(weight.float())
        tensors |= {f"{name.removesuffix('weight')}{suffix}": tensor for suffix, tensor in saved.items()}
        plain[name] = stands_for.to(weight.dtype)
    quantised = draft.config | {"quantization_config": config}
    return Quantised(replace(draft, config=quantised, tensors=tensors), replace(draft, tensors=plain))


def _compressed(draft: Draft, names: list[str], plain: list[str], preset: str) -> Quantised:
    """As llm-compressor does it, without its calibration."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.compressors.base import decompress_module
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
    from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme

    modules = [name.removesuffix(".weight") for name in names]
    model = _linear_modules({name: draft.tensors[f"{name}.weight"] for name in [*modules, *plain]})
    scheme = preset_name_to_scheme(preset, ["Linear"])
    if scheme.weights.strategy == "group" and scheme.weights.num_bits == 4:
        scheme.weights.group_size = GROUP
    asked = QuantizationConfig(config_groups={"group_0": scheme}, ignore=plain)
    apply_quantization_config(model, asked)
    for name in modules:
        _set_scales(model.get_submodule(name))
    compressor = ModelCompressor.from_pretrained_model(model)
    with torch.compiler.set_stance("force_eager"):  # it compiles a rounding, for seconds
        compressor.compress_model(model)
    tensors, values = dict(draft.tensors), dict(draft.tensors)
    for name in modules:
        del tensors[f"{name}.weight"]
        module = model.get_submodule(name)
        tensors |= {f"{name}.{key}": tensor.clone() for key, tensor in module.state_dict().items()}
        opened = deepcopy(module)
        decompress_module(opened)
        values[f"{name}.weight"] = opened.weight.detach().to(draft.tensors[f"{name}.weight"].dtype)
    written = compressor.quantization_config.model_dump(mode="json", exclude=["quant_method"])
    config = draft.config | {"quantization_config": {"quant_method": "compressed-tensors", **written}}
    return Quantised(replace(draft, config=config, tensors=tensors), replace(draft, tensors=values))


def _linear_modules(weights: Tensors) -> torch.nn.Module:
    """A module of this tree of linear layers."""
    root = torch.nn.Module()
    for name, weight in weights.items():
        place = root
        *above, last = name.split(".")
        for part in above:
            if part not in dict(place.named_children()):
                place.add_module(part, torch.nn.Module())
            place = place.get_submodule(part)
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
        linear.weight.data = weight.clone()
        place.add_module(last, linear)
    return root


def _set_scales(module: torch.nn.Module) -> None:
    """Scales by the weights' extremes, in each row, group or whole tensor."""
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    args, weight = module.quantization_scheme.weights, module.weight.data
    scales = module.weight_scale
    columns = scales.shape[1] if scales.ndim == 2 else 1
    parts = weight.view(weight.shape[0], columns, -1) if scales.numel() > 1 else weight.view(1, 1, -1)
    least, most = parts.amin(-1), parts.amax(-1)
    extra = {}
    if hasattr(module, "weight_global_scale"):
        extra["global_scale"] = generate_gparam(weight.amin(), weight.amax())
        module.weight_global_scale.data.copy_(extra["global_scale"])
    fitted, zeros = calculate_qparams(least, most, args, **extra)
    scales.data.copy_(fitted.view(scales.shape))
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data.copy_(zeros.view(scales.shape))
    if hasattr(module, "input_global_scale"):
        module.input_global_scale.data.fill_(1.0)
    if hasattr(module, "input_scale"):
        module.input_scale.data.fill_(1 / 16)


def _fp8(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """One scale of the weight, one of what is multiplied with it."""
    scale = weight.abs().amax() / _E4M3
    packed = (weight / scale).to(torch.float8_e4m3fn)
    tensors = {"weight": packed, "weight_scale": scale, "input_scale": torch.tensor(1 / 16)}
    return tensors, packed.float() * scale


def _fp8_dynamic(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    tensors, value = _fp8(weight)
    del tensors["input_scale"]
    return tensors, value


def _nvfp4(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Pairs of four-bit floats a byte, the even column in the lower half; an e4m3 scale for 16 columns,
    and one of the whole weight."""
    rows, columns = weight.shape
    whole = weight.abs().amax() / (_E4M3 * 6)
    parts = weight.view(rows, -1, _BLOCK4)
    scale = (parts.abs().amax(-1) / 6 / whole).to(torch.float8_e4m3fn)
    step = scale.float()[..., None] * whole
    nearest = ((parts / step).abs()[..., None] - _NIBBLES).abs().argmin(-1)
    sign = parts < 0
    nibbles = (nearest + 8 * sign).view(rows, columns).to(torch.uint8)
    value = torch.where(sign, -1, 1) * _NIBBLES[nearest] * step
    packed = nibbles[:, ::2] | nibbles[:, 1::2] << 4
    tensors = {
        "weight": packed, "weight_scale": scale, "weight_scale_2": whole,
        "input_scale": torch.tensor(1 / 64),
    }  # fmt: skip
    return tensors, value.view(rows, columns)


def _four_bits(weight: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Integers 0 to 15 around 8 [N, K], their scales in float16 [N, groups], and what they stand for."""
    rows, columns = weight.shape
    parts = weight.view(rows, -1, group)
    scale = (parts.abs().amax(-1) / 7).half()
    integers = (parts / scale.float()[..., None]).round().clamp(-8, 7) + 8
    value = (integers - 8) * scale.float()[..., None]
    return integers.view(rows, columns).int(), scale, value.view(rows, columns)


def _pack(integers: torch.Tensor, order: Iterable[int] = range(8)) -> torch.Tensor:
    """Eight neighbours of the last dimension in an int32, the first of the order in its lowest bits."""
    eights = integers.view(*integers.shape[:-1], -1, 8).long()
    packed = sum(eights[..., place] << 4 * at for at, place in enumerate(order))
    return torch.where(packed >= 2**31, packed - 2**32, packed).int()


def _awq(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Zero points of 5 to 10, another one in each row and group: their order matters."""
    rows, columns = weight.shape
    parts = weight.view(rows, -1, GROUP)
    zeros = torch.randint(5, 11, parts.shape[:2], generator=torch.Generator().manual_seed(rows))
    scale = (parts.abs().amax(-1) / 5).half()
    steps = (parts / scale.float()[..., None]).round().clamp(-5, 5)
    integers = (steps + zeros[..., None]).view(rows, columns).int()
    tensors = {
        "qweight": _pack(integers.T.contiguous(), _AWQ_ORDER),
        "qzeros": _pack(zeros.T.contiguous(), _AWQ_ORDER), "scales": scale.T.contiguous(),
    }  # fmt: skip
    return tensors, (steps * scale.float()[..., None]).view(rows, columns)


def _gptq(weight: torch.Tensor, group: int = GROUP) -> tuple[Tensors, torch.Tensor]:
    """Zero points are written less one."""
    integers, scale, value = _four_bits(weight, group)
    zeros = torch.full((scale.shape[1], weight.shape[0]), 7)
    tensors = {
        "qweight": _pack(integers).T.contiguous(), "qzeros": _pack(zeros),
        "scales": scale.T.contiguous(),
        "g_idx": (torch.arange(weight.shape[1]) // group).int(),
    }  # fmt: skip
    return tensors, value


def _last(names: list[str]) -> list[str]:
    """The names' ends; "proj" alone would be a part of every projection's name."""
    return sorted({name if name.endswith(".proj") else name.rpartition(".")[2] for name in names})


# compressed-tensors' presets by the names of this file.
PRESETS = {
    "compressed-tensors W8A8": "W8A8",
    "compressed-tensors W4A16": "W4A16",
    "compressed-tensors W4A16, zero points": "W4A16_ASYM",
    "compressed-tensors FP8": "FP8",
    "compressed-tensors FP8, dynamic": "FP8_DYNAMIC",
    "compressed-tensors NVFP4": "NVFP4",
    "compressed-tensors NVFP4A16": "NVFP4A16",
    "compressed-tensors MXFP8": "MXFP8",
}
# Others: how a weight is written, and the config beside a list of plain modules.
FORMULAS: dict[str, tuple[Encode, Callable[[list[str]], dict[str, Any]]]] = {
    "fp8": (_fp8, lambda plain: {
        "quant_method": "fp8", "activation_scheme": "static", "ignored_layers": plain,
    }),
    "fp8, dynamic": (_fp8_dynamic, lambda plain: {
        "quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": plain,
    }),
    "modelopt FP8": (_fp8, lambda plain: {
        "quant_method": "modelopt", "quant_algo": "FP8", "ignore": plain,
    }),
    "modelopt NVFP4": (_nvfp4, lambda plain: {
        "quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": _BLOCK4,
        "exclude_modules": [f"*{name}" for name in _last(plain)],
    }),
    "AWQ": (_awq, lambda plain: {
        "quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm",
        "modules_to_not_convert": _last(plain),
    }),
    "GPTQ": (_gptq, lambda plain: {
        "quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True,
        "modules_in_block_to_quantize": None, "dynamic": {f"-:.*{name}": {} for name in _last(plain)},
    }),
}  # fmt: skip
FORMATS = (*PRESETS, *FORMULAS)
BY_32 = (
    "compressed-tensors W4A16", "compressed-tensors W4A16, zero points", "compressed-tensors MXFP8",
    "AWQ", "GPTQ",
)  # fmt: skip


def decoded(module: torch.nn.Module) -> torch.Tensor | None:
    """The weight [N, K] that a linear module of vLLM's holds in eight- or four-bit floats, as loaded.

    Each of the parts that it fuses may have a scale of its own. None: it holds another.
    """
    state = {name: parameter.data for name, parameter in module.named_parameters(recurse=False)}
    packed = state.get("weight_packed", state.get("weight"))
    if packed is None or packed.dtype not in (torch.float8_e4m3fn, torch.uint8):
        return None
    rows = torch.tensor(getattr(module, "logical_widths", [len(packed)]))
    whole = state.get("weight_scale_2", state.get("weight_global_scale"))
    if packed.dtype == torch.uint8:
        nibbles = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1).int()
        values = torch.where(nibbles > 7, -1, 1) * _NIBBLES[nibbles % 8]
        # compressed-tensors divides by the scale of the whole.
        factor = whole.float() if "weight_scale_2" in state else 1 / whole.float()
        scales = state["weight_scale"].float() * factor.repeat_interleave(rows)[:, None]
        return values * scales.repeat_interleave(_BLOCK4, dim=1)
    scale = state["weight_scale"].float()
    if scale.numel() == len(rows):
        scale = scale.flatten().repeat_interleave(rows)[:, None]
    return packed.float() * scale
