# SPDX-License-Identifier: Apache-2.0
"""Types of the keys that transformers' config classes and vLLM's config builder read of a draft.

A null is dropped where a start goes on without its key. Classes of vLLM's own, such as that of the
speculators format, enforce no annotations.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from vllm_eagle_ext.checkpoint.class_types import OF_THE_CLASS, class_types, demands_dividing_heads
from vllm_eagle_ext.checkpoint.findings import Problem

NEEDED = frozenset(
    {
        "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "rms_norm_eps",
        "vocab_size",
    }
)  # fmt: skip
# What to write where nothing tells what was meant; other keys of two values are false.
_SILENT = {"hidden_act": "silu", "initializer_range": 0.02, "use_cache": True}
_NAMES = {
    "None": "null", "bool": "true or false", "dict": "an object", "int": "a whole number",
    "float": "a number with a decimal point", "list": "a list", "str": "text",
}  # fmt: skip
_TYPES = {"bool": bool, "dict": dict, "float": float, "int": int, "list": list, "str": str}
DTYPES = frozenset({"bfloat16", "double", "float", "float16", "float32", "float64", "half"})
_ROPES = ("rope_scaling", "rope_parameters")  # null says in them that a key is not stated
_OTHER_DRAFT = "correct the number, if the tensors have others; otherwise use another draft"
_MOST_LABELS = 2**16  # transformers makes a name for each
_TRANSFORMERS = "transformers stops at any other"
_VLLM = "vLLM's config builder stops at any other"


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a key may hold."""

    fits: Callable[[Any], bool]
    words: str
    why: str = _TRANSFORMERS
    edit: str = ""


def _is_dtype(value: Any) -> bool:
    return value is None or (type(value) is str and value in DTYPES)


def _is_length(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 1 <= value < math.inf)


def _is_number_of_experts(value: Any) -> bool:
    given = value if type(value) is list and value else [value]
    return value is None or all(type(one) is int and one >= 0 for one in given)


def _has_whole_keys(value: Any) -> bool:
    return value is None or (type(value) is dict and all(key.isdecimal() for key in value))


def _names_classes(value: Any) -> bool:
    return type(value) is dict and type(value.get("AutoConfig", "")) is str


def _is_null(value: Any) -> bool:
    return value is None


_DTYPE = _Kind(_is_dtype, f"one of {', '.join(sorted(DTYPES))}, or null")
_LENGTH = _Kind(_is_length, "a number of at least 1, or null", _VLLM)
_EXPERTS = _Kind(_is_number_of_experts, "a whole number, or null", _VLLM)
_PART = _Kind(
    _is_null, "null, or no such key", "vLLM looks for the draft there",
    "move its keys to the top of config.json, if they are the draft's, or remove it",
)  # fmt: skip
_NAME = _Kind(
    lambda value: False, "no such key",
    "a part of transformers' config class has this name", "remove the key",
)  # fmt: skip
_NOTHING = _Kind(lambda value: value == {}, "empty, or no such key", edit="remove the key")
# Names that transformers' base class has itself.
SHADOWING: Mapping[str, _Kind] = {
    **dict.fromkeys(OF_THE_CLASS, _NAME),
    **dict.fromkeys(("attribute_map", "per_layer_config", "sub_configs"), _NOTHING),
    "ignore_keys_at_rope_validation": _Kind(lambda value: type(value) is list, "a list"),
}
# What the base class and vLLM do with a key, whatever the class.
_IN_BASE: Mapping[str, _Kind] = {
    "dtype": _DTYPE,
    "torch_dtype": _DTYPE,
    "id2label": _Kind(_has_whole_keys, "an object whose keys are whole numbers, or null"),
    "num_labels": _Kind(
        lambda value: type(value) is int and 0 <= value <= _MOST_LABELS, f"0 to {_MOST_LABELS}"
    ),
    "auto_map": _Kind(_names_classes, "an object of names"),
    "rope_theta": _Kind(lambda value: value is not None, "a number"),
    "n_predict": _Kind(
        lambda value: value is None or (type(value) is int and value == 1), "1, or null",
        "vLLM takes it for the depth of a multi-token-prediction head",
    ),
    "compression_config": _Kind(
        _is_null, "null, or no such key", "vLLM takes it for the quantization_config",
        'rename the key to "quantization_config"',
    ),
    **SHADOWING,
    **dict.fromkeys(("text_config", "decoder", "generator", "text_encoder"), _PART),
    **dict.fromkeys(
        (
            "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_target_positions",
            "max_sequence_length", "max_seq_length", "seq_len",
        ), _LENGTH,
    ),
    **dict.fromkeys(
        (
            "num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts",
            "num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k",
        ), _EXPERTS,
    ),
}  # fmt: skip
# Of the block of a layer in the speculators format.
_OF_A_LAYER: Mapping[str, _Kind] = {
    "max_position_embeddings": _Kind(lambda value: type(value) is int, "a whole number"),
}


def mistyped(config: Mapping[str, Any], *, is_published: bool = True) -> Iterator[Problem]:
    """Find what a config states in a type that stops transformers or vLLM.

    Args:
        config: flattened.
        is_published: not in the speculators format, whose class enforces no annotations.
    """
    for key, kind in _kinds(config, is_published=is_published).items():
        value = config.get(key)
        if value is not None and not kind.fits(value):
            yield Problem(
                field=f"{key} of the draft's config.json",
                value=value,
                allowed=f"{kind.words}: {kind.why}",
                remedy=kind.edit or edit(key, value, kind.fits),
            )


def wrong_heads(config: Mapping[str, Any], *, is_published: bool) -> Iterator[Problem]:
    """Find numbers of a well-typed config that transformers' classes take only together with others."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    if is_published and demands_dividing_heads(str(config.get("model_type"))) and width % heads:
        allowed = (
            f"a divisor of hidden_size, {width}: transformers stops at any other of this model_type"
        )
        yield _root_problem("num_attention_heads", heads, allowed, _OTHER_DRAFT)
    for key in ("head_dim", "qk_rope_head_dim"):
        if (config.get(key) or 0) % 2:
            allowed = "an even number: rope rotates channels in pairs"
            yield _root_problem(key, config[key], allowed, _OTHER_DRAFT)


def unreadable_format(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Find what keeps vLLM from reading a config of the speculators format as one.

    Args:
        config: as published, not flattened.
    """
    kind, names = config.get("speculators_model_type"), config.get("architectures")
    if kind is not None and type(kind) is not str:
        allowed, remedy = "text", "write the kind that the draft was trained as"
        yield _root_problem("speculators_model_type", kind, allowed, remedy)
    if names is not None and not (type(names) is list and all(type(name) is str for name in names)):
        allowed, remedy = "a list of names", "write the architecture that the draft was trained as"
        yield _root_problem("architectures", names, allowed, remedy)
    layer = config.get("transformer_layer_config")
    if isinstance(layer, Mapping) and layer.get("output_attentions"):
        key = "transformer_layer_config.output_attentions"
        allowed = "false, or no such key: vLLM's class of this format stops at any other"
        yield _root_problem(key, layer["output_attentions"], allowed, "remove the key")


def _root_problem(key: str, value: object, allowed: str, remedy: str) -> Problem:
    field = f"{key} of the draft's config.json"
    return Problem(field=field, value=value, allowed=allowed, remedy=remedy)


def without_nulls(config: Mapping[str, Any], *, dtype: str | None = None) -> Mapping[str, Any]:
    """Return a config.json without the nulls that stop a start which goes on without these keys.

    Args:
        dtype: to state where none is. vLLM would look for it in each file that is called safetensors.
    """
    block = config.get("transformer_layer_config")
    if "speculators_model_type" in config and isinstance(block, Mapping):
        kept = _without(block, dtype, is_published=False)
        # Without this type vLLM goes by `speculators_config`, which may be missing.
        named = {} if config.get("model_type") else {"model_type": "speculators"}
        return {**config, **named, "transformer_layer_config": kept}
    return _without(config, dtype, is_published=True)


def _without(config: Mapping[str, Any], dtype: str | None, *, is_published: bool) -> dict[str, Any]:
    kinds = _kinds(config, is_published=is_published)
    kept = {
        key: value
        for key, value in config.items()
        if value is not None or key not in kinds or kinds[key].fits(None)
    }
    for key in _ROPES:
        if isinstance(block := kept.get(key), Mapping):
            kept[key] = {inner: value for inner, value in block.items() if value is not None}
    if dtype and not kept.get("dtype"):  # the loose class of speculators reads no `torch_dtype`
        kept["dtype"] = kept.pop("torch_dtype", None) or dtype
    return kept


def edit(key: str, value: Any, fits: Callable[[Any], bool]) -> str:
    """Say what to write in the place of a value: what was meant, if it tells, else what a class has."""
    guesses = [guess for guess in (*_meant(value), _SILENT.get(key, False)) if fits(guess)]
    written = f'write "{key}": {json.dumps(guesses[0])}' if guesses else ""
    if key in NEEDED:
        return written or "write the value that the draft was trained with"
    return f"{written}, or leave the key out" if written else "leave the key out"


def _meant(value: Any) -> Iterator[Any]:
    """Yield what a value may have been meant for."""
    if type(value) is list and len(value) == 1:
        yield value[0]
    if type(value) is str:
        yield value.removeprefix("torch.")
        with suppress(ValueError, RecursionError):
            yield json.loads(value.lower())
    if type(value) in (bool, int, float):
        with suppress(ValueError, OverflowError):
            yield from (float(value), int(value))
    if value in (0, 1):
        yield bool(value)


def _kinds(config: Mapping[str, Any], *, is_published: bool) -> Mapping[str, _Kind]:
    if not is_published:  # whose class is looser, but not what vLLM computes of it
        return {**_IN_BASE, **_OF_A_LAYER}
    types = class_types(str(config.get("model_type")))
    return {**_IN_BASE, **{key: _kind(key, annotation) for key, annotation in types.items()}}


@cache
def _kind(key: str, annotation: str) -> _Kind:
    node = ast.parse(annotation, mode="eval").body
    parts = _alternatives(node)
    words = " or ".join(dict.fromkeys(_words(part) for part in parts)) or "another type"
    if key == "initializer_range":  # of which some classes say so
        return _Kind(lambda value: _is_one_of(value, parts) and 0 <= value <= 1, f"{words} up to 1.0")
    return _Kind(partial(_is_one_of, parts=parts), words)


def _alternatives(node: ast.expr) -> list[ast.expr]:
    """Return the types of a union that JSON can hold."""
    if isinstance(node, ast.BinOp):
        return [*_alternatives(node.left), *_alternatives(node.right)]
    is_known = not isinstance(node, ast.Name) or node.id in _TYPES
    return [node] if is_known else []


def _is_one_of(value: Any, parts: list[ast.expr]) -> bool:
    return not parts or any(_is_a(value, part) for part in parts)


def _is_a(value: Any, node: ast.expr) -> bool:
    """Tell whether a value is of a type of transformers' annotations; of another it may be."""
    match node:
        case ast.Constant(value=None):
            return value is None
        case ast.Name(id=name):
            return type(value) is _TYPES[name]
        case ast.Subscript(value=ast.Name(id="list"), slice=inner):
            return type(value) is list and all(_is_one_of(one, _alternatives(inner)) for one in value)
        case ast.Subscript(value=ast.Name(id="dict")):
            return type(value) is dict
        case ast.Subscript(value=ast.Name(id="tuple")):
            return False
    return True


def _words(node: ast.expr) -> str:
    match node:
        case ast.Subscript(value=ast.Name(id="list"), slice=inner):
            return f"a list, each {' or '.join(map(_words, _alternatives(inner)))}"
    return _NAMES.get(ast.unparse(node), ast.unparse(node))
