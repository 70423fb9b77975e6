# SPDX-License-Identifier: Apache-2.0
"""The operation in three steps: `verify` reads committed states and records its rows, `plan` says what
is committed, `Commit` writes it. One interface, `types.ReplayKernels`, and four implementations:
`reference` (plain PyTorch), `cpu` (vLLM's C++ operators), `triton` and `triton_chunked`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
