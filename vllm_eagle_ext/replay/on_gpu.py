# SPDX-License-Identifier: Apache-2.0
"""How the layer and its commit use `ops.triton`, with vLLM's convolution around it. A commit
takes three launches for all KV-cache groups: the plan, the states, the conv states.
"""

from __future__ import annotations

import torch
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update

from vllm_eagle_ext.memory import chunked_kernels
from vllm_eagle_ext.replay.cache_groups import CacheGroups
from vllm_eagle_ext.replay.ops import triton, triton_blocks, triton_chunked
from vllm_eagle_ext.replay.ops.types import (
    Batch,
    BlockPlaces,
    BlockTables,
    Layer,
    Plan,
    PlanApplier,
    Recurrence,
    StateCache,
)
from vllm_eagle_ext.replay.protocol import Implementation, Step
from vllm_eagle_ext.replay.warm_up import compile_later_batches


class GpuOps:
    candidates = (
        Implementation("chunked", triton_chunked, exact=False, obstacle=chunked_kernels.hindrance),
        Implementation("sequential", triton, exact=True),
    )
    scratch_blocks = 0
    steps_plain_decodes = True
    gathers_by_address = True

    def gather_blocks(self, tables: BlockTables, places: BlockPlaces, out: torch.Tensor) -> None:
        triton_blocks.gather_blocks(tables, places, out)

    def prepare(self, batch: Batch, rows_per_request: int) -> Batch:
        del rows_per_request
        return batch

    def warm_up(
        self,
        recurrence: Recurrence,
        groups: CacheGroups,
        step: Step,
        num_sampled: torch.Tensor,
        apply: PlanApplier,
        plan: Plan,
        layer: Layer,
    ) -> None:
        compile_later_batches(recurrence, groups, step, num_sampled, apply, plan, layer)

    def convolve(
        self, layer: QwenGatedDeltaNetAttention, x: torch.Tensor, cache: StateCache, step: Step
    ) -> torch.Tensor:
        weight = layer.conv1d.weight
        return causal_conv1d_update(
            x,
            cache.conv,
            weight.view(weight.size(0), weight.size(2)),
            layer.conv1d.bias,
            layer.activation,
            conv_state_indices=step.batch.state_blocks,
            num_accepted_tokens=step.ones,
            query_start_loc=step.batch.starts,
            max_query_len=cache.records.shape[1],
            validate_data=False,
        )

    def forward_committed(
        self,
        layer: QwenGatedDeltaNetAttention,
        mixed_qkv: torch.Tensor,
        b: torch.Tensor,
        a: torch.Tensor,
        core_attn_out: torch.Tensor,
    ) -> None:
        QwenGatedDeltaNetAttention._forward_core(layer, mixed_qkv, b, a, core_attn_out)
