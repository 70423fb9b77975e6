# SPDX-License-Identifier: Apache-2.0
"""Finds which modules of a quantised draft are quantised in its files, and tells vLLM of them.

vLLM decides by the names that modules have at run time: layers are numbered after the target's, q, k
and v are one module, gate and up another, and the Qwen3 drafter leaves `self_attn.` out before q, k and
v. Published lists name modules as the checkpoint does, and vLLM's drafter classes hand no table of fused
modules to the quantisation's config.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import regex

from vllm_eagle_ext.draft.headers import TensorHeader
from vllm_eagle_ext.draft.spec import Case

# Methods whose lists are understood, and the keys that hold what is left out; vLLM reads the first.
LISTS = {
    "compressed-tensors": ("ignore",),
    "fp8": ("ignored_layers", "modules_to_not_convert"),
    "modelopt": ("ignore", "exclude_modules"),
    "modelopt_fp4": ("ignore", "exclude_modules"),
    "awq": ("modules_to_not_convert",),
    "awq_marlin": ("modules_to_not_convert",),
    "auto_awq": ("modules_to_not_convert",),
}
GPTQ_METHODS = ("gptq", "gptq_marlin", "auto_gptq")
GPTQ_RULES = "dynamic"  # settings of single modules, by patterns
AS_EXPORTED = "state in config.json how its exporter quantised it, or ask its publisher"
MOST_PATTERNS = 1000  # a draft has some 450 modules at most
_MOST_CHARACTERS = 1000
# Of processor time, for all patterns and names of a draft. Real ones take some ms; the most that a
# draft of 64 layers can ask for took 0.5 on a slow CPU.
_SECONDS = 1.5
_CLIP = 80  # characters of a pattern in a message
# Methods that list what is quantised; where nothing is listed, vLLM lists the checkpoint's names.
_POSITIVE_LIST = "modules_in_block_to_quantize"
# What vLLM fuses, and of what.
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
}
_HEADS = ("lm_head", "markov_head.markov_w2")
FLOATS = ("BF16", "F16", "F32", "F64")
SCALE_NAMES = ("weight_scale", "weight_scale_inv", "scales")
_PACKED = (".weight_packed", ".qweight")
_BY_PATTERN = "re:"  # as compressed-tensors marks patterns
_NUMBERED = re.compile(r"layers\\?\.\d")
_LOW_PRECISION = ("F8", "F4", "U8", "I8")
_SCALES_OF = {
    ".weight_packed": (".weight_scale",),
    ".qweight": (".scales",),
    ".weight": (".weight_scale", ".weight_scale_inv"),
}


def quantised_weights(tensors: Mapping[str, TensorHeader]) -> dict[str, str]:
    """Return module -> suffix of its packed or low-precision weight."""
    suffixes = {}
    for name, header in tensors.items():
        module, dot, kind = name.rpartition(".")
        low = kind == "weight" and header.dtype.startswith(_LOW_PRECISION)
        if low or name.endswith(_PACKED):
            suffixes[module] = dot + kind
    return suffixes


def without_scales(tensors: Mapping[str, TensorHeader]) -> list[str]:
    """Return the quantised modules whose weight has no scale with it."""
    return [
        module
        for module, suffix in quantised_weights(tensors).items()
        if not any(module + scale in tensors for scale in _SCALES_OF[suffix])
    ]


def torn_modules(case: Case) -> dict[str, list[str]]:
    """Return fused modules of which some parts are quantised and others not: name -> its plain parts."""
    packed = quantised_weights(case.files.tensors)
    plain: dict[str, list[str]] = {}
    for module in _plain_linear(case):
        plain.setdefault(runtime_name(module, case), []).append(module)
    quantised = {runtime_name(module, case) for module in packed}
    return {name: parts for name, parts in plain.items() if name in quantised}


def target_patterns(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the patterns by which the groups of compressed-tensors name modules."""
    groups = config.get("config_groups")
    blocks = groups.values() if isinstance(groups, Mapping) else ()
    lists = [block.get("targets") for block in blocks if isinstance(block, Mapping)]
    names = [name for names in lists if isinstance(names, list) for name in names]
    return tuple(name[3:] for name in names if isinstance(name, str) and name.startswith("re:"))


def first_matches(patterns: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    """Return, by name, the first pattern that fits it from its beginning.

    `regex` is what vLLM matches with, and can be stopped, which Python's `re` cannot.

    Raises:
        ValueError: too many patterns, one that cannot be read, or too slow ones.
    """
    patterns, names, fitting = tuple(patterns), tuple(names), dict[str, str]()
    if len(patterns) > MOST_PATTERNS:
        raise ValueError(f"{len(patterns)} patterns, more than the {MOST_PATTERNS} that are read")
    end = time.process_time() + _SECONDS
    for pattern in patterns:
        try:
            if len(pattern) > _MOST_CHARACTERS or time.process_time() > end:
                raise TimeoutError
            compiled = regex.compile(pattern)
            for name in names:
                seconds = max(end - time.process_time(), 1e-6)
                if name not in fitting and compiled.match(name, timeout=seconds):
                    fitting[name] = pattern
        except Exception as error:  # noqa: BLE001 - RecursionError, OverflowError, regex.error and more
            is_slow = isinstance(error, TimeoutError | MemoryError)
            why = "takes too long to match" if is_slow else "cannot be read"
            raise ValueError(f"{pattern[:_CLIP]!r}, which {why}") from None
    return fitting


def published_modules(case: Case) -> dict[str, str]:
    """Return quantised module -> its name in the files."""
    tensors = case.files.tensors
    return {
        module: tensors[module + suffix].published.removesuffix(suffix)
        for module, suffix in quantised_weights(tensors).items()
    }


def named_for_vllm(case: Case) -> dict[str, Any]:
    """Return the draft's `quantization_config`, with the names that its modules have at run time added.

    What is left out follows from the files: the modules whose weights are plain there.
    """
    config = dict(case.config.quantization_config or {})
    method = config.get("quant_method")
    if not isinstance(method, str) or not case.has_tensors:
        return config
    if method in GPTQ_METHODS:
        return config | {_POSITIVE_LIST: _quantised_names(case), GPTQ_RULES: {}}
    if method not in LISTS:
        return config
    config[LISTS[method][0]] = names = _left_out(config, LISTS[method], case)
    if isinstance(nested := config.get("quantization"), Mapping):  # older files of ModelOpt
        config["quantization"] = {**nested, "exclude_modules": names}
    if isinstance(groups := config.get("config_groups"), Mapping):
        config["config_groups"] = {name: _with_targets(group, case) for name, group in groups.items()}
    return config


def _left_out(config: Mapping[str, Any], keys: Iterable[str], case: Case) -> list[str]:
    """Return what is listed, and the names at run time of all that is plain in the files.

    An entry with a layer's number may name another layer at run time, and is not needed; nor is a name
    of a module which is quantised in the files, nor a pattern, which vLLM would match without an end.
    """
    nested = config.get("quantization")
    blocks = [config, nested] if isinstance(nested, Mapping) else [config]
    listed = [block[key] for block in blocks for key in keys if isinstance(block.get(key), list)]
    entries = [entry for entries in listed for entry in entries if isinstance(entry, str)]
    quantised = set(_quantised_names(case))
    kept = [
        entry
        for entry in dict.fromkeys(entries)
        if not entry.startswith(_BY_PATTERN) and not _NUMBERED.search(entry) and entry not in quantised
    ]
    plain = {runtime_name(module, case) for module in _plain_linear(case)}
    if "lm_head" not in quantised_weights(case.files.tensors):
        plain.add("lm_head")  # which some methods quantise unless it is listed
    return kept + sorted(plain - set(kept))


def _quantised_names(case: Case) -> list[str]:
    """Return the run-time names of what is quantised, of fused modules and of their parts."""
    modules = quantised_weights(case.files.tensors)
    return sorted({name(module, case) for module in modules for name in (_part_name, runtime_name)})


def _with_targets(group: Any, case: Case) -> Any:
    """Return a group of compressed-tensors that lists modules by name, with their names at run time.

    Without its patterns, which may fit another layer there; a name without a dot may be a class's.
    """
    targets = group.get("targets") if isinstance(group, Mapping) else None
    if not isinstance(targets, list):
        return group
    modules = published_modules(case)
    if "Linear" in targets:  # which heads are while a draft is quantised, and not in vLLM
        heads = {runtime_name(module, case) for module in modules if module in _HEADS}
        return {**group, "targets": [*targets, *sorted(heads)]}
    patterns = target_patterns({"config_groups": {"": group}})
    fitting = first_matches(patterns, (*modules, *modules.values()))
    named = {
        runtime_name(module, case)
        for module, published in modules.items()
        if any(name in targets or name in fitting for name in (module, published))
    }
    classes = [target for target in targets if not target.startswith(_BY_PATTERN) and "." not in target]
    return {**group, "targets": [*classes, *sorted(named)]}


def _plain_linear(case: Case) -> Iterator[str]:
    """Yield the quantisable modules whose weights are plain, without embeddings and head."""
    packed = quantised_weights(case.files.tensors)
    for name, expected in case.expected.items():
        module = name.removesuffix(".weight")
        is_linear = name.endswith(".weight") and len(expected.shape) == 2
        is_plain = name in case.files.tensors and module not in packed
        if is_linear and is_plain and module not in ("embed_tokens", "lm_head"):
            yield module


def runtime_name(module: str, case: Case) -> str:
    """Return the name of the module that vLLM makes of it, by itself or fused with others."""
    place, dot, part = module.rpartition(".")
    fused = next((whole for whole, parts in FUSED.items() if part in parts), part)
    return _part_name(f"{place}{dot}{fused}", case)


def _part_name(module: str, case: Case) -> str:
    """Return the name that a module has after the target's layers."""
    match = re.match(r"layers\.(\d{1,9})\.(.*)", module)
    if match is None:
        return module if module == "lm_head" else f"model.{module}"
    index, part = int(match[1]) + case.target.num_layers, match[2]
    if case.spec.drafter.omits_self_attn:
        part = re.sub(r"^self_attn\.((?:qkv|q|k|v)_proj)$", r"\1", part)
    return f"model.layers.{index}.{part}"
