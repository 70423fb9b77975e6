# SPDX-License-Identifier: Apache-2.0
"""Which modules of a quantised draft are quantised: in its files, and as vLLM will build them.

vLLM decides by the names that modules have at run time: layers are numbered behind the target's, and
the Qwen3 drafter leaves `self_attn.` out before q, k and v. Published ignore lists name modules as the
checkpoint does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

from vllm_eagle_ext.checkpoint.case import Case
from vllm_eagle_ext.checkpoint.expected_tensors import expected_tensors
from vllm_eagle_ext.checkpoint.headers import TensorHeader

# Methods whose lists are understood, and the keys that hold them.
_LISTS = {
    "compressed-tensors": ("ignore",),
    "fp8": ("ignored_layers", "modules_to_not_convert"),
    "modelopt": ("exclude_modules", "ignore"),
    "modelopt_fp4": ("exclude_modules", "ignore"),
    "awq": ("modules_to_not_convert",),
}
FLOATS = ("BF16", "F16", "F32", "F64")
SCALE_NAMES = ("weight_scale", "weight_scale_inv", "scales")
_PACKED = (".weight_packed", ".qweight")
_LOW_PRECISION = ("F8", "F4", "U8", "I8")
_SCALES = {
    ".weight_packed": (".weight_scale",),
    ".qweight": (".scales",),
    ".weight": (".weight_scale", ".weight_scale_inv"),
}


def quantised_weights(tensors: Mapping[str, TensorHeader]) -> dict[str, str]:
    """Module -> suffix of its packed or low-precision weight."""
    found = {}
    for name, header in tensors.items():
        module, dot, kind = name.rpartition(".")
        low = kind == "weight" and header.dtype.startswith(_LOW_PRECISION)
        if low or name.endswith(_PACKED):
            found[module] = dot + kind
    return found


def without_scales(tensors: Mapping[str, TensorHeader]) -> list[str]:
    """Quantised modules whose weight has no scale beside it."""
    return [
        module
        for module, suffix in quantised_weights(tensors).items()
        if not any(module + scale in tensors for scale in _SCALES[suffix])
    ]


def plain_but_not_left_out(case: Case) -> list[str]:
    """Modules with plain weights that vLLM will build as quantised ones."""
    config = case.config.quantization_config or {}
    method = config.get("quant_method")
    if not isinstance(method, str) or method not in _LISTS:
        return []
    return [module for module in _plain_linear(case) if _is_quantised_at_run_time(module, case, config)]


def _plain_linear(case: Case) -> Iterator[str]:
    """The head is never quantised by these methods, unless they name it."""
    table = expected_tensors(case.spec, case.config, case.target.vocab_size)
    packed = quantised_weights(case.files.tensors)
    for name, expected in table.items():
        module = name.removesuffix(".weight")
        is_linear = name.endswith(".weight") and len(expected.shape) == 2
        is_plain = name in case.files.tensors and module not in packed
        if is_linear and is_plain and module not in ("embed_tokens", "lm_head"):
            yield module


def _is_quantised_at_run_time(module: str, case: Case, config: Mapping[str, Any]) -> bool:
    name = runtime_name(module, case)
    method = str(config["quant_method"])
    lists = [config[key] for key in _LISTS[method] if isinstance(config.get(key), list)]
    first: list[Any] = next(
        (names for names in lists if names), []
    )  # vLLM takes the others where it is empty
    entries = [entry for entry in first if isinstance(entry, str)]
    names = [name]
    if case.spec.served_by.renumbers_exclusions and method.startswith("modelopt"):
        names.append(f"model.{module}")  # the drafter renumbers these entries itself
    if any(_matches(entry, candidate, method) for entry in entries for candidate in names):
        return False
    targets = _targets(config)
    return targets is None or any(_matches(target, name, method) for target in targets)


def runtime_name(module: str, case: Case) -> str:
    match = re.match(r"layers\.(\d+)\.(.*)", module)
    if match is None:
        return f"model.{module}"
    index, part = int(match[1]) + case.target.num_layers, match[2]
    if case.spec.served_by.omits_self_attn:
        part = re.sub(r"^self_attn\.([qkv]_proj)$", r"\1", part)
    return f"model.layers.{index}.{part}"


def _matches(entry: str, name: str, method: str) -> bool:
    """As vLLM matches for this method: exactly, by pattern, or by a part of the name."""
    if method == "compressed-tensors" and entry.startswith("re:"):
        try:
            return re.match(entry[3:], name) is not None
        except re.error:
            return False
    if method in ("compressed-tensors", "fp8"):
        return entry == name
    return entry in name or (method.startswith("modelopt") and fnmatch(name, entry))


def _targets(config: Mapping[str, Any]) -> Sequence[str] | None:
    """What compressed-tensors quantises, where it does not say every linear module."""
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping):
        return None
    lists = [group.get("targets") for group in groups.values() if isinstance(group, Mapping)]
    targets = [t for names in lists if isinstance(names, list) for t in names if isinstance(t, str)]
    return None if not targets or "Linear" in targets else targets
