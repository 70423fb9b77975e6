# SPDX-License-Identifier: Apache-2.0
"""Rules about quantised drafts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_eagle_ext.draft.findings import Problem, Problems, Severity, key_problem, rule
from vllm_eagle_ext.draft.quantisation import (
    AS_EXPORTED,
    FLOATS,
    GPTQ_METHODS,
    GPTQ_RULES,
    MOST_PATTERNS,
    SCALE_NAMES,
    first_matches,
    published_modules,
    quantised_weights,
    target_patterns,
    torn_modules,
    without_scales,
)
from vllm_eagle_ext.draft.spec import Case
from vllm_eagle_ext.draft.tensors import HOLDS_WEIGHTS

_WEIGHT_DTYPES = {"fp8": "F8"}  # by method, as headers begin
_LEAST_BLOCK = 16  # rows; the usual are 32 and 128
_PACKED = tuple(name for name in HOLDS_WEIGHTS if name != "weight")
_NOT_PLAIN = ("F8", "I", "U8", "F4")
_SHOWN = 5
_LISTS = ("ignore", "exclude_modules", "ignored_layers", "modules_to_not_convert")


@rule(Severity.ERROR)
def quantisation_is_well_formed(case: Case) -> Problems:
    """`quantization_config` names modules, by patterns that vLLM can match at once."""
    config = case.config.quantization_config
    if config is None:
        return
    if transforms := config.get("transform_config"):
        yield Problem(
            field="transform_config of the draft's quantization_config", value=transforms,
            allowed="none: vLLM matches it in unbounded time", remedy="use a draft without transforms",
        )  # fmt: skip
    for place, value, allowed in _unnamed(config):
        yield Problem(
            field=f"{place} of the draft's quantization_config", value=value, allowed=allowed,
            remedy=AS_EXPORTED,
        )  # fmt: skip
        return
    modules = published_modules(case)
    try:
        first_matches(target_patterns(config), (*modules, *modules.values()))
    except ValueError as error:
        yield Problem(
            field="targets of the draft's quantization_config",
            value=str(error),
            allowed=f"names of modules and of classes, and up to {MOST_PATTERNS} regular "
            "expressions that are matched at once",
            remedy=AS_EXPORTED,
        )


def _unnamed(config: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield dotted place, value and what is allowed of what can be read as no names of modules."""
    if not isinstance(config.get("quant_method"), str):
        yield "quant_method", config.get("quant_method"), "text"
    lists = {key: config[key] for key in _LISTS if config.get(key) is not None}
    groups = config.get("config_groups") or {}
    if not isinstance(groups, Mapping):
        yield "config_groups", groups, "an object"
        return
    for name, group in groups.items():
        if not isinstance(group, Mapping):
            yield f"config_groups.{name}", group, "an object"
            return
        lists[f"config_groups.{name}.targets"] = group.get("targets")
    for place, names in lists.items():
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            yield place, names, "a list of text"


@rule(Severity.ERROR)
def quantised_weights_are_there(case: Case) -> Problems:
    """`quantization_config` needs quantised weights."""
    if case.spec.quantisation and case.has_tensors and not quantised_weights(case.files.tensors):
        yield key_problem(
            "quantization_config",
            case.spec.quantisation,
            allowed="none, because every weight of the files is plain",
            remedy="remove it from config.json, or use the files that belong to it",
        )


@rule(Severity.ERROR)
def quantised_weights_fit_their_method(case: Case) -> Problems:
    """`fp8` weights are eight-bit floats."""
    allowed = _WEIGHT_DTYPES.get(case.spec.quantisation or "")
    for module, suffix in quantised_weights(case.files.tensors).items():
        header = case.files.tensors[module + suffix]
        if allowed and not header.dtype.startswith(allowed):
            yield Problem(
                field=f"dtype of {header.published}",
                value=header.dtype,
                allowed=f"{allowed} for the quant_method {case.spec.quantisation}",
                remedy=AS_EXPORTED,
            )
            return


@rule(Severity.ERROR)
def quantised_weights_have_scales(case: Case) -> Problems:
    """Quantised weights have scales. vLLM leaves a missing one as it was allocated."""
    if modules := without_scales(case.files.tensors):
        yield Problem(
            field="scales of the draft's quantised weights",
            value=f"without those of {', '.join(modules)}",
            allowed="a scale with each quantised weight",
            remedy="download all files of the draft",
        )


@rule(Severity.ERROR)
def scales_are_numbers(case: Case) -> Problems:
    """Scales are floats, of eight bits only for small groups (NVFP4, MXFP8)."""
    grouped = {
        module
        for module, suffix in quantised_weights(case.files.tensors).items()
        if suffix == ".weight_packed" or case.files.tensors[module + suffix].dtype != "I8"
    }
    for name, header in case.files.tensors.items():
        module, _, kind = name.rpartition(".")
        eight_bit = header.dtype.startswith("F8") or header.dtype == "U8"
        if kind not in SCALE_NAMES or header.dtype in FLOATS or (eight_bit and module in grouped):
            continue
        yield Problem(
            field=f"dtype of {header.published}",
            value=header.dtype,
            allowed=", ".join(FLOATS),
            remedy="export it again",
        )


@rule(Severity.ERROR)
def scales_fit_their_weights(case: Case) -> Problems:
    """Scales are one for the tensor, one per row, or one per block of rows."""
    for module, suffix in quantised_weights(case.files.tensors).items():
        rows = case.files.tensors[module + suffix].shape[:1]
        scale = case.files.tensors.get(f"{module}.weight_scale")
        if scale is None or suffix == ".qweight" or not rows or scale.shape in ((), (1,)):
            continue
        per_row, per_block = rows[0], scale.shape[0]
        whole_blocks = per_block > 0 and -(-per_row // per_block) >= _LEAST_BLOCK
        if per_block not in (1, per_row) and not whole_blocks:
            yield Problem(
                field=f"shape of {scale.published}",
                value=scale.shape,
                allowed=f"one row, {per_row} rows as its weight has, or one per block of rows",
                remedy="check that all files belong to the same draft",
            )


@rule(Severity.ERROR)
def fused_parts_agree(case: Case) -> Problems:
    """q, k and v are quantised alike, as are gate and up. vLLM makes one module of them."""
    if case.spec.quantisation is None:
        return
    for name, plain in torn_modules(case).items():
        yield Problem(
            field=f"quantised parts of {name.rpartition('.')[2]}",
            value=f"without {', '.join(plain)}, whose weights are plain",
            allowed="all of its parts or none: vLLM computes them as one module",
            remedy="quantise the draft again, with all of them or with none",
        )


@rule(Severity.ERROR)
def gptq_settings_are_shared(case: Case) -> Problems:
    """GPTQ's `dynamic` only leaves modules out. Its patterns fit other names than vLLM's."""
    config = case.config.quantization_config or {}
    rules = config.get(GPTQ_RULES) or {}
    if config.get("quant_method") not in GPTQ_METHODS:
        return
    own = rules.items() if isinstance(rules, Mapping) else [(rules, None)]
    for pattern, settings in own:
        is_shared = isinstance(settings, Mapping) and settings.items() <= config.items()
        if not is_shared and not str(pattern).startswith("-:"):
            yield Problem(
                field=f"{GPTQ_RULES} of the draft's quantization_config",
                value={str(pattern): settings},
                allowed="rules that leave modules out, or repeat the settings of all modules",
                remedy="quantise the draft again, with the same settings for all modules",
            )
            return


@rule(Severity.ERROR)
def qweights_fit(case: Case) -> Problems:
    """Scales of AWQ and GPTQ, [groups, rows], follow config.json."""
    table = case.expected
    shared = (case.config.quantization_config or {}).get("group_size")
    for module, suffix in quantised_weights(case.files.tensors).items():
        scales, expected = case.files.tensors.get(f"{module}.scales"), table.get(f"{module}.weight")
        if suffix != ".qweight" or scales is None or expected is None:
            continue
        rows, columns = expected.shape
        size = columns if shared == -1 else shared if isinstance(shared, int) else None
        groups = size and -(-columns // size)
        if len(scales.shape) != 2 or scales.shape[1] != rows or groups not in (None, scales.shape[0]):
            counted = "a row per group" if groups is None else f"{groups} rows, one per {size} columns"
            yield Problem(
                field=f"shape of {scales.published}",
                value=scales.shape,
                allowed=f"{counted}, and {rows} columns, the rows of its weight",
                remedy="check config.json; of a gated draft, use the one with plain weights",
            )


@rule(Severity.ERROR)
def quantised_fc_is_in_order(case: Case) -> Problems:
    """A quantised `fc` needs ascending aux layer ids."""
    if case.spec.aux_layers.is_reordered and "fc" in quantised_weights(case.files.tensors):
        yield Problem(
            field="order of the draft's aux layers",
            value=list(case.spec.aux_layers.published_ids or ()),
            allowed="ascending ids: the blocks of a quantised fc cannot be permuted",
            remedy="use the draft with a plain fc",
        )


@rule(Severity.ERROR)
def plain_parts_are_plain(case: Case) -> Problems:
    """Modules that vLLM builds plain, such as `embed_tokens`, have plain tensors."""
    if case.spec.quantisation is None and not case.spec.drafter.uses_vllm_class:
        return
    plain = case.spec.family.plain_modules
    if quantised_weights(case.files.tensors).get("lm_head") == ".qweight":
        plain = tuple(dict.fromkeys((*plain, "lm_head.")))  # vLLM pads its rows, not packed ones
    packed = [
        header.published
        for name, header in case.files.tensors.items()
        if name.startswith(plain)
        and (name.endswith(_PACKED) or "scale" in name or header.dtype.startswith(_NOT_PLAIN))
    ]
    if packed:
        yield Problem(
            field="quantised tensors of the draft",
            value=", ".join(packed[:_SHOWN]),
            allowed="a quantisation that leaves out " + ", ".join(name.rstrip(".") for name in plain),
            remedy="use a draft in which these are plain",
        )
