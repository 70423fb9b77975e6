# SPDX-License-Identifier: Apache-2.0
"""Reads which KV connector an engine will have."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any


def read_connector(config: Any, size: float | None, backend: str | None) -> str | None:
    """Name what moves an engine's KV-cache blocks: vLLM's offloading options replace a connector's name.

    Args:
        config: `kv_transfer_config`, as an object or as a user writes it.
        size: `kv_offloading_size`, GiB.
        backend: `kv_offloading_backend`; None: vLLM's default.
    """
    if size is not None and backend in (None, "native"):
        return "SimpleCPUOffloadConnector" if _is_simple() else "OffloadingConnector"
    if size is not None and backend == "lmcache":
        return "LMCacheMPConnector"
    given = config.get("kv_connector") if isinstance(config, Mapping) else config
    name = getattr(given, "kv_connector", given)
    return str(name) if name else None


def _is_simple() -> bool:
    """As vLLM reads it, whose front end may not be imported here."""
    return bool(int(os.getenv("VLLM_USE_SIMPLE_KV_OFFLOAD", "0")))
