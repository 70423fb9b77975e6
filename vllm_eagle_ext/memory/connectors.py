# SPDX-License-Identifier: Apache-2.0
"""Reads which KV connector an engine will have, and what vLLM's runner does to it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

_SEVERAL = "MultiConnector"


def read_connector(config: Any, size: float | None, backend: str | None) -> str | None:
    """Name what moves an engine's KV-cache blocks: vLLM's offloading options replace a connector's name.

    vLLM's `MultiConnector` is named with those within it, as "MultiConnector (A, B)".

    Args:
        config: `kv_transfer_config`, as an object or as a user writes it.
        size: `kv_offloading_size`, GiB.
        backend: `kv_offloading_backend`; None: vLLM's default.
    """
    if size is not None and backend in (None, "native"):
        return "SimpleCPUOffloadConnector" if _is_simple() else "OffloadingConnector"
    if size is not None and backend == "lmcache":
        return "LMCacheMPConnector"
    name = config if isinstance(config, str) else _read(config, "kv_connector")
    names = _names_within(config) if name == _SEVERAL else []
    return f"{name} ({', '.join(names)})" if names else str(name) if name else None


def _names_within(config: Any) -> list[str]:
    within = _read(config, "kv_connector_extra_config")
    entries = within.get("connectors") if isinstance(within, Mapping) else None
    listed = entries if isinstance(entries, (list, tuple)) else ()
    return [str(read_connector(entry, None, None)) for entry in listed]


def _read(config: Any, key: str) -> Any:
    return config.get(key) if isinstance(config, Mapping) else getattr(config, key, None)


def _is_simple() -> bool:
    """Read the flag as vLLM does, whose front end may not be imported here."""
    return bool(int(os.getenv("VLLM_USE_SIMPLE_KV_OFFLOAD", "0")))
