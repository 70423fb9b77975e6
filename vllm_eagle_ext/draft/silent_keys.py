# SPDX-License-Identifier: Apache-2.0
"""Keys of a draft's config.json of which vLLM and transformers take a wrong value without a word.

All other types are theirs to judge: a start, and a dry start, ask their classes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from vllm_eagle_ext.draft.findings import Problem, key_problem

# What to write where nothing tells what was meant; other keys of two values are false.
_SILENT = {"hidden_act": "silu", "initializer_range": 0.02, "use_cache": True}
_TORCH_DTYPES = frozenset({"bfloat16", "double", "float", "float16", "float32", "float64", "half"})
LAYER_BLOCK = "transformer_layer_config"  # of the speculators format
ROPES = ("rope_scaling", "rope_parameters")
_MOST_LABELS = 2**16  # transformers makes a name for each


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a key may hold, where it is stated."""

    fits: Callable[[Any], bool]
    words: str
    edit: str = ""


def _never(value: Any) -> bool:
    return False


_STOPS = "transformers stops at any other"
_DTYPE = _Kind(
    lambda value: type(value) is str and value in _TORCH_DTYPES,
    f"one of {', '.join(sorted(_TORCH_DTYPES))}, or null: {_STOPS}",
)
_PART = _Kind(
    _never, "null, or no such key: vLLM looks for the draft there",
    "move its keys to the top of config.json, if they are the draft's, or remove it",
)  # fmt: skip
_NAME = "no such key: a part of transformers' config class has this name"
# Settings that give a key's value to another or to single layers, and a method that vLLM calls.
SETTINGS = ("attribute_map", "per_layer_config", "sub_configs")
OF_THE_CLASS = (*SETTINGS, "update")
_KINDS: Mapping[str, _Kind] = {
    "dtype": _DTYPE,
    "torch_dtype": _DTYPE,
    "num_labels": _Kind(
        lambda value: type(value) is int and 0 <= value <= _MOST_LABELS, f"0 to {_MOST_LABELS}: {_STOPS}"
    ),
    "n_predict": _Kind(
        lambda value: type(value) is int and value == 1,
        "1, or null: vLLM takes it for the depth of a multi-token-prediction head",
    ),
    "compression_config": _Kind(
        _never, "null, or no such key: vLLM takes it for the quantization_config",
        'rename the key to "quantization_config"',
    ),
    "update": _Kind(_never, _NAME, "remove the key"),
    **dict.fromkeys(SETTINGS, _Kind(lambda value: value == {}, _NAME, "remove the key")),
    **dict.fromkeys(("text_config", "decoder", "generator", "text_encoder"), _PART),
}  # fmt: skip


def without_nulls(config: Mapping[str, Any], depth: int = 2) -> dict[str, Any]:
    """Return a config.json in which a null is no key, as the rules read it, down to rope in a layer's
    block. A quantisation's readers ask for its nulls."""
    kept = {key: value for key, value in config.items() if value is not None}
    for key, block in kept.items():
        if depth and isinstance(block, Mapping) and key != "quantization_config":
            kept[key] = without_nulls(block, depth - 1)
    return kept


def mistaken(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Find what a start would take for something else.

    Args:
        config: flattened, and without nulls.
    """
    for key, kind in _KINDS.items():
        if key in config and not kind.fits(config[key]):
            remedy = kind.edit or edit(key, config[key], kind.fits)
            yield key_problem(key, config[key], allowed=kind.words, remedy=remedy)


def nameless(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Find what a config of the speculators format, not flattened, names no class or layer by."""
    if not isinstance(block := config.get(LAYER_BLOCK), Mapping):
        allowed, remedy = "the layer's sizes, an object", "use the config.json that speculators wrote"
        yield key_problem(LAYER_BLOCK, block, allowed=allowed, remedy=remedy)
    names = config.get("architectures")
    if names is not None and not (type(names) is list and all(type(name) is str for name in names)):
        remedy = "write the architecture that the draft was trained as"
        yield key_problem("architectures", names, allowed="a list of names", remedy=remedy)


def edit(key: str, value: Any, fits: Callable[[Any], bool], *, is_needed: bool = False) -> str:
    """Say what to write in the place of a value: what was meant, if it tells, else what a class has."""
    guesses = [guess for guess in (*_meant(value), _SILENT.get(key, False)) if fits(guess)]
    written = f'write "{key}": {json.dumps(guesses[0])}' if guesses else ""
    if is_needed:
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
