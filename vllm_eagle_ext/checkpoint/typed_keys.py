# SPDX-License-Identifier: Apache-2.0
"""Types of keys that no drafter computes with, but without which transformers builds no config.

The config classes of all drafts agree on these. vLLM builds a speculators draft by a looser class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any

from vllm_eagle_ext.checkpoint.findings import Problem

_ID = (int, NoneType)
TYPED_KEYS: Mapping[str, tuple[type, ...]] = {
    "attention_bias": (bool,),
    "attention_dropout": (float, int, NoneType),
    "bos_token_id": _ID,
    "eos_token_id": (*_ID, list),
    "hidden_act": (str,),
    "id2label": (dict, NoneType),
    "initializer_range": (float,),
    "pad_token_id": _ID,
    "tie_word_embeddings": (bool,),
    "use_cache": (bool,),
}
_NAMES = {
    bool: "true or false", dict: "an object", float: "a number with a decimal point",
    int: "a whole number", list: "a list of whole numbers", NoneType: "null", str: "text",
}  # fmt: skip
DTYPES = frozenset({"bfloat16", "double", "float", "float16", "float32", "float64", "half"})


def mistyped(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Find what a published config states in a type that stops transformers."""
    for key, kinds in TYPED_KEYS.items():
        if key in config and not _is_of(config[key], kinds):
            names = [_NAMES[kind] for kind in kinds]
            yield _problem(key, config[key], f"{' or '.join(names)}, or no such key")
    for key in ("dtype", "torch_dtype"):
        value = config.get(key)
        if isinstance(value, str) and value not in DTYPES:
            yield _problem(key, value, f"one of {', '.join(sorted(DTYPES))}")


def _is_of(value: Any, kinds: tuple[type, ...]) -> bool:
    if type(value) is list:
        return list in kinds and all(type(entry) is int for entry in value)
    return type(value) in kinds


def _problem(key: str, value: Any, allowed: str) -> Problem:
    return Problem(
        field=f"{key} of the draft's config.json",
        value="null" if value is None else value,
        allowed=f"{allowed}: transformers stops at any other",
        remedy="use the config.json that was published with the draft",
    )
