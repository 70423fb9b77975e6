# SPDX-License-Identifier: Apache-2.0
"""Reads which KV connector an engine will have, and what vLLM's runner does to it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from vllm_eagle_ext.errors import HybridStateError

_OFFLOADING = "OffloadingConnector"


def read_connector(config: Any, size: float | None, backend: str | None) -> str | None:
    """Name what moves an engine's KV-cache blocks: vLLM's offloading options replace a connector's name.

    Args:
        config: `kv_transfer_config`, as an object or as a user writes it.
        size: `kv_offloading_size`, GiB.
        backend: `kv_offloading_backend`; None: vLLM's default.
    """
    if size is not None and backend in (None, "native"):
        return "SimpleCPUOffloadConnector" if _is_simple() else _OFFLOADING
    if size is not None and backend == "lmcache":
        return "LMCacheMPConnector"
    given = config.get("kv_connector") if isinstance(config, Mapping) else config
    name = getattr(given, "kv_connector", given)
    return str(name) if name else None


def warn_of_late_saves(connector: str | None, *, runner: str) -> None:
    """Refuse offloading where vLLM clears blocks of states before it saves them; a start warns.

    Raises:
        HybridStateError: blocks of a target with such states are offloaded by the V2 runner.
    """
    if connector == _OFFLOADING and runner == "v2":
        raise HybridStateError(
            field="KV connector",
            value=connector,
            allowed="none beside a target with recurrent states on vLLM's V2 runner, which clears a "
            "block that was handed on before its bytes are saved to the host: where the cache is full, "
            "prefixes come back as zeros or another request's: wrong texts, also without a draft",
            remedy="serve without offloading",
        )


def _is_simple() -> bool:
    """As vLLM reads it, whose front end may not be imported here."""
    return bool(int(os.getenv("VLLM_USE_SIMPLE_KV_OFFLOAD", "0")))
