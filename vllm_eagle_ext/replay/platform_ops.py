# SPDX-License-Identifier: Apache-2.0
"""What a platform offers to the layer, the metadata and the commit, and who runs it here."""

from __future__ import annotations

from functools import cache
from typing import Protocol

import torch
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.platforms import current_platform

from vllm_eagle_ext.replay.ops.types import (
    Align,
    Batch,
    BlockPlaces,
    BlockTables,
    CommitKernel,
    CommitPlan,
    Implementation,
    Layer,
    PaddingBatch,
    ReplayKernels,
    StateCache,
    Step,
)


class ReplayOps(Protocol):
    """Implemented by `on_cpu.CpuOps` and `on_gpu.GpuOps`."""

    @property
    def candidates(self) -> tuple[Implementation, ...]:
        """Return all implementations, the fastest first: a start takes the first that is right."""

    @property
    def scratch_blocks(self) -> int:
        """Return the state blocks per request next to the one that holds its state."""

    @property
    def steps_plain_decodes(self) -> bool:
        """Say whether vLLM's plain decode can step states in this package's state blocks."""

    @property
    def gathers_by_address(self) -> bool:
        """Say whether block tables are read where they stand, whatever tensor they were last seen in."""

    def gather_blocks(self, tables: BlockTables, places: BlockPlaces, out: torch.Tensor) -> None:
        """Fill `out` [1 + scratch_blocks, groups, R]: the state block of each request in each group's
        table, then its scratch block; NULL_BLOCK after the last request."""

    def prepare(self, batch: Batch, rows_per_request: int) -> Batch:
        """Prepare the batch once a step, before the layers run."""

    def warm_up(
        self,
        kernels: ReplayKernels,
        padding_batch: PaddingBatch,
        align: Align | None,
        num_sampled: torch.Tensor,
        commit: CommitKernel,
        plan: CommitPlan,
        layer: Layer,
    ) -> None:
        """Prepare later steps at the first commit, whose buffers and first layer these are."""

    def convolve(
        self, layer: QwenGatedDeltaNetAttention, x: torch.Tensor, cache: StateCache, step: Step
    ) -> torch.Tensor:
        """Convolve x [N, dim] -> [N, dim]; append the inputs to the conv states, which a commit moves
        on."""

    def forward_committed(
        self,
        layer: QwenGatedDeltaNetAttention,
        mixed_qkv: torch.Tensor,  # [tokens, dim]
        b: torch.Tensor,  # [tokens, HV]
        a: torch.Tensor,  # [tokens, HV]
        core_attn_out: torch.Tensor,  # [tokens, HV, DV]
    ) -> None:
        """Run vLLM's own code for prompts and plain decodes."""


@cache
def replay_ops() -> ReplayOps:
    if current_platform.is_cpu():
        from vllm_eagle_ext.replay.on_cpu import CpuOps

        return CpuOps()
    from vllm_eagle_ext.replay.on_gpu import GpuOps

    return GpuOps()
