# SPDX-License-Identifier: Apache-2.0
"""Names in a draft's quantization_config that no module of the running drafter has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vllm_eagle_ext.checkpoint.headers import TensorHeader

_KEYS = ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers")
# A name of one layer, as checkpoints number them; patterns are left alone.
_LOCAL_LAYER = re.compile(r"^(model\.)?(midlayer\.|layers\.\d+\.)")


def quantised_tensors(tensors: Mapping[str, TensorHeader]) -> list[str]:
    """Names of packed or low-precision weights and of their scales."""
    packed = (".weight_packed", ".qweight", ".weight_scale", ".weight_scale_inv", ".scales")
    return [
        name
        for name, header in tensors.items()
        if name.endswith(packed)
        or (name.endswith(".weight") and header.dtype.startswith(("F8", "F4", "U8", "I8")))
    ]


def stale_ignores(config: Mapping[str, Any] | None) -> list[str]:
    """Entries that name a layer by its number in the checkpoint."""
    if config is None:
        return []
    lists = [config[key] for key in _KEYS if isinstance(config.get(key), list)]
    entries = [entry for names in lists for entry in names if isinstance(entry, str)]
    return [entry for entry in entries if _LOCAL_LAYER.match(entry)]
