# SPDX-License-Identifier: Apache-2.0
"""Tells which of vLLM's KV connectors move the state blocks that replay writes, whole and in time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Copies whole pages, a step behind the commit that wrote them (V2 runner).
OFFLOADING = "OffloadingConnector"
_SIMPLE = "SimpleCPUOffloadConnector"


@dataclass(frozen=True, slots=True)
class Connector:
    """Names what moves an engine's KV-cache blocks, and says whether copies outlive the engine."""

    name: str
    has_second_tiers: bool = False

    def __str__(self) -> str:
        return f"{self.name} with secondary_tiers" if self.has_second_tiers else self.name


def read_connector(
    config: Any, offloading_size: float | None, offloading_backend: str | None
) -> Connector | None:
    """Read vLLM's options; vLLM makes a connector of the offloading options later on.

    Args:
        config: `kv_transfer_config`, as an object or as a user writes it.
        offloading_size: `kv_offloading_size`, GiB.
        offloading_backend: `kv_offloading_backend`.
    """
    if config:
        extra = _field(config, "kv_connector_extra_config") or {}
        name = _field(config, "kv_connector")
        return Connector(str(name), bool(extra.get("secondary_tiers"))) if name else None
    if not offloading_size:
        return None
    if offloading_backend in (None, "native"):
        return Connector(_SIMPLE if os.environ.get("VLLM_USE_SIMPLE_KV_OFFLOAD") == "1" else OFFLOADING)
    return Connector(str(offloading_backend))


def _field(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def hindrance_of(connector: Connector, runner: str) -> tuple[str, str] | None:
    """Say what is allowed and what to do where blocks that replay wrote cannot be moved."""
    if connector.name != OFFLOADING:
        allowed = f"none, or {OFFLOADING} (--kv-offloading-size), which copies whole blocks"
        return allowed, "serve without this KV connector"
    if runner == "v1":
        allowed = "none on vLLM's V1 runner, which copies before a commit"
        return allowed, "the V2 runner (VLLM_USE_V2_MODEL_RUNNER=1), or serve without a KV connector"
    if connector.has_second_tiers:
        # vLLM names a tier's files by model, ranks and block size alone (kv_offload/file_mapper.py).
        allowed = (
            f"{OFFLOADING} without secondary_tiers: their files outlive the engine, and vLLM's names "
            "for them do not tell one layout of the states from another"
        )
        return allowed, "offload to the host's memory alone"
    return None
