# SPDX-License-Identifier: Apache-2.0
"""The operations of the platform that vLLM runs on."""

from __future__ import annotations

from functools import cache

from vllm_eagle_ext.replay.ops.types import ReplayOps


@cache
def replay_ops() -> ReplayOps:
    """Return what runs on this platform."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from vllm_eagle_ext.replay.on_cpu import CpuOps

        return CpuOps()
    from vllm_eagle_ext.replay.on_gpu import GpuOps

    return GpuOps()
