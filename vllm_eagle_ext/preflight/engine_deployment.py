# SPDX-License-Identifier: Apache-2.0
"""Reads from vLLM's front end what its workers will size their blocks by."""

from __future__ import annotations

from typing import Any

from vllm_eagle_ext import compat
from vllm_eagle_ext.memory.connectors import read_connector
from vllm_eagle_ext.memory.deployment import Deployment


def read_deployment(engine_args: Any) -> Deployment:
    """Name the release and the device of this start; a platform that is no CUDA has neither graphs nor
    FlashInfer, and counts as a CPU only where it is one."""
    from vllm.platforms import current_platform

    release = compat.vllm_version()
    if current_platform.is_cpu():
        return Deployment(release=release, capability=None)
    found = current_platform.get_device_capability() if current_platform.is_cuda() else None
    options = engine_args.additional_config
    asked = engine_args.gdn_prefill_backend or (
        options.get("gdn_prefill_backend") if isinstance(options, dict) else None
    )
    return Deployment(
        release=release,
        capability=(found.major, found.minor) if found else (0, 0),
        cuda=current_platform.get_cuda_runtime_major() if found else 0,
        gdn_prefill=str(asked or "auto").strip().lower(),
    )


def connector_of(engine_args: Any) -> str | None:
    """Name what moves the KV-cache blocks of this start, if anything does."""
    return read_connector(
        engine_args.kv_transfer_config,
        engine_args.kv_offloading_size,
        engine_args.kv_offloading_backend,
    )
