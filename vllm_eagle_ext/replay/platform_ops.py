# SPDX-License-Identifier: Apache-2.0
"""Which implementation of the operation runs on this platform."""

from __future__ import annotations

from functools import cache

from vllm.platforms import current_platform

from vllm_eagle_ext.replay.protocol import ReplayOps


@cache
def replay_ops() -> ReplayOps:
    if current_platform.is_cpu():
        from vllm_eagle_ext.replay.on_cpu import CpuOps

        return CpuOps()
    from vllm_eagle_ext.replay.on_gpu import GpuOps

    return GpuOps()
