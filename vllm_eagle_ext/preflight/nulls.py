# SPDX-License-Identifier: Apache-2.0
"""Drops the nulls of a draft's config.json that stop a start which goes on without these keys.

Which they are is asked of the config class: it names the key that it refuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from vllm_eagle_ext.checkpoint.flags import LAYER_BLOCK
from vllm_eagle_ext.checkpoint.silent_keys import ROPES, without_nulls

# A null of these stops a start elsewhere: no class refuses it.
_READ_ELSEWHERE = ("auto_map", "rope_theta")
_MOST_TRIES = 64
_REFUSED = re.compile(r"[Ff]ield '(\w{1,64})'")


def readable(config: Mapping[str, Any], *, dtype: str) -> Mapping[str, Any]:
    """Return what no class is asked about.

    Args:
        dtype: to state where none is. vLLM would look for it in each file that is called safetensors.
    """
    block = config.get(LAYER_BLOCK)
    if "speculators_model_type" in config and isinstance(block, Mapping):
        # Without this type vLLM goes by `speculators_config`, which may be missing.
        named = {} if config.get("model_type") else {"model_type": "speculators"}
        # Its class refuses nothing, and vLLM computes with what it took.
        return {**config, **named, LAYER_BLOCK: _with_dtype(without_nulls(block), dtype)}
    kept = {
        key: without_nulls(value) if key in ROPES and isinstance(value, Mapping) else value
        for key, value in config.items()
        if value is not None or key not in _READ_ELSEWHERE
    }
    return _with_dtype(kept, dtype)


def _with_dtype(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    if not config.get("dtype"):  # the class of speculators reads no `torch_dtype`
        config["dtype"] = config.pop("torch_dtype", None) or dtype
    return config


def build_without_nulls(
    config_class: type, config: Mapping[str, Any], build: Callable[[dict[str, Any]], Any]
) -> Any:
    """Let a class build a config; drop a null that it refuses, and let it try again.

    A null in the place of a method or property, which the class does not look at, is dropped first.
    """
    own = {field.name for field in fields(config_class)}
    kept = {
        key: value
        for key, value in config.items()
        if value is not None or key in own or not hasattr(config_class, key)
    }
    for _ in range(_MOST_TRIES):
        try:
            return build(dict(kept))
        except Exception as error:
            key = next(iter(_REFUSED.findall(str(error))), None)
            if key is None or kept.get(key, "") is not None:
                raise
            del kept[key]
    return build(kept)
