# SPDX-License-Identifier: Apache-2.0
"""Tells drafts in GGUF files, which this package does not read, and who else may load them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from importlib.metadata import entry_points

from vllm_eagle_ext.errors import GgufDraftError

_PLUGIN = "vllm_gguf_plugin"
_SAFETENSORS = "use the safetensors it was converted from"
_QUANTISED = re.compile(r":[\w+-]+$")  # OWNER/NAME:Q4_K_M or FOLDER:Q4_K_M, names of the plugin's


def plugin_is_active() -> bool:
    """Say whether vLLM will load its GGUF plugin, by the plugin's entry point; nothing is imported."""
    asked = os.environ.get("VLLM_PLUGINS")
    return any(
        entry.value.startswith(_PLUGIN) and (asked is None or entry.name in asked.split(","))
        for entry in entry_points(group="vllm.general_plugins")
    )


def refuse_gguf(model: str, names: Iterable[str], field: str) -> None:
    """Refuse a draft of which one of these names is a GGUF file, or the plugin's word for one.

    Raises:
        GgufDraftError: with who may load it.
    """
    is_active = plugin_is_active()
    is_plugins = is_active and bool(_QUANTISED.search(model)) and not os.path.isdir(model)
    if not is_plugins and not any(str(name).endswith(".gguf") for name in names):
        return
    nobody = f"vLLM itself loads no draft from GGUF, and vllm-gguf-plugin is not active: {_SAFETENSORS}"
    plugin = f"a start leaves it to vllm-gguf-plugin, unchecked; to have it checked, {_SAFETENSORS}"
    raise GgufDraftError(
        field=field,
        value=model,
        allowed="a draft checkpoint with config.json and safetensors",
        remedy=plugin if is_active else nobody,
    )
