# SPDX-License-Identifier: Apache-2.0
"""What a platform offers to the layer, the metadata and the commit, and the step they all read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention

from vllm_eagle_ext.replay.ops.types import Align, Batch, Gating, Recurrence, StateCache


@dataclass(frozen=True)
class Step:
    """The verify rows of one engine step, for the layers of one KV-cache group and for their commit."""

    batch: Batch
    num_rows: int  # N
    num_requests: int  # without padding
    rows: torch.Tensor | None  # [N] tokens of the whole batch; None: all, in order
    other_rows: torch.Tensor  # the tokens that are not verified
    rows_of: torch.Tensor | None  # [R] requests in the whole batch; None: all, in order
    align: Align | None
    ones: torch.Tensor  # [R] int32, for vLLM's convolution: conv states, too, are committed ones


class ReplayLayer(Protocol):
    """What a commit reads of a layer."""

    @property
    def state_cache(self) -> StateCache: ...

    @property
    def gating(self) -> Gating: ...

    @property
    def conv_kernel_size(self) -> int: ...


class ReplayOps(Protocol):
    """Implemented by `on_cpu.CpuOps` and `on_gpu.GpuOps`."""

    @property
    def recurrence(self) -> Recurrence: ...

    @property
    def scratch_blocks(self) -> int:
        """State blocks per request beside the one that holds its state."""

    def prepare(self, batch: Batch, rows_per_request: int) -> Batch:
        """Prepare the batch once a step, before the layers run."""

    def convolve(
        self, layer: QwenGatedDeltaNetAttention, x: torch.Tensor, cache: StateCache, step: Step
    ) -> torch.Tensor:
        """x [N, dim] -> [N, dim]; appends the inputs to the conv states, which a commit moves on."""

    def forward_committed(
        self,
        layer: QwenGatedDeltaNetAttention,
        mixed_qkv: torch.Tensor,  # [tokens, dim]
        b: torch.Tensor,  # [tokens, HV]
        a: torch.Tensor,  # [tokens, HV]
        core_attn_out: torch.Tensor,  # [tokens, HV, DV]
    ) -> None:
        """vLLM's own code for prompts and plain decodes."""
