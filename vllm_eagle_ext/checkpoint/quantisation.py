# SPDX-License-Identifier: Apache-2.0
"""Names in a draft's quantization_config that no module of the running drafter has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_KEYS = ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers")
# A name of one layer, as checkpoints number them; patterns are left alone.
_LOCAL_LAYER = re.compile(r"^(model\.)?(midlayer\.|layers\.\d+\.)")


def stale_ignores(config: Mapping[str, Any] | None) -> list[str]:
    """Entries that name a layer by its number in the checkpoint."""
    if config is None:
        return []
    entries = [entry for key in _KEYS for entry in config.get(key) or () if isinstance(entry, str)]
    return [entry for entry in entries if _LOCAL_LAYER.match(entry)]
