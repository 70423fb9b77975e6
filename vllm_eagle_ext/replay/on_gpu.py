# SPDX-License-Identifier: Apache-2.0
"""How the layer and its commit use `ops.triton_chunked` or `ops.triton`, around vLLM's convolution. A
commit takes three launches for all KV-cache groups: the plan, the states, the conv states.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import torch
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update
from vllm.v1.attention.backends.recoverssm_metadata import (
    RecoverSSMMetadata,
    RecoverSSMPostprocessMetadata,
)
from vllm.v1.worker.gpu.model_states.recoverssm import RecoverSSMState
from vllm.v1.worker.utils import AttentionGroup

from vllm_eagle_ext.replay.ops import triton, triton_chunked, triton_plan
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
    ReplayOps,
    Rows,
    StateCache,
    Step,
)


class GpuOps(ReplayOps):
    candidates = (
        Implementation(
            "chunked", triton_chunked, exact=False, unsupported_reason=triton_chunked.unsupported_reason
        ),
        Implementation("sequential", triton, exact=True),
    )
    scratch_blocks = 0
    gathers_by_address = True

    def gather_blocks(self, tables: BlockTables, places: BlockPlaces, out: torch.Tensor) -> None:
        triton_plan.gather_blocks(tables, places, out)

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
        """Compile what later batches need, at the first commit.

        That is part of vLLM's own warm-up; with `--enforce-eager` vLLM has none, and the first step with
        drafts waits. Mixed batches ask for other variants of the kernels, and few requests for other
        tiles than many: compiling while serving is a stall. Nothing is written that a step would read.
        """
        # Batches of one request and of the most.
        for requests in (1, plan.final.shape[-1]):  # the chunked kernels' tiles differ
            batch = padding_batch(indices=None, requests=requests)
            _compile_verify(kernels, layer, batch.of_group(0))
            commit(batch, CommitPlan(*(part[:, :requests] for part in plan)))
        # Batches whose requests stand in their places, and mixed ones.
        one_request = torch.zeros(1, dtype=torch.int32, device=num_sampled.device)
        for indices in (None, one_request):
            batch = padding_batch(indices=indices)
            parts = CommitPlan(*(part[:, :1] for part in plan))
            kernels.plan(batch, num_sampled, indices, align, parts)
            _compile_align(align, num_sampled, indices)

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

    def forward_committed(self, layer: QwenGatedDeltaNetAttention, *tensors: torch.Tensor) -> None:
        QwenGatedDeltaNetAttention._forward_core(layer, *tensors)


class _Answer(RecoverSSMMetadata):
    """Of a step that committed nothing."""

    def __init__(self, answer: RecoverSSMPostprocessMetadata) -> None:
        self.answer = answer

    def commit_recoverssm_state(
        self, num_accepted_tokens: torch.Tensor
    ) -> RecoverSSMPostprocessMetadata | None:
        return self.answer


def _compile_verify(kernels: ReplayKernels, layer: Layer, batch: Batch) -> None:
    """Compile the verify kernels for a batch. vLLM's graphs hold steps of few and of many requests, and
    its warm-up runs both where there is room for many; there is neither with `--enforce-eager`."""
    _, HV, DV, DK = layer.cache.state.shape
    records = layer.cache.records
    keys = records.shape[2] - HV * (DV + 2)
    # As the layer's convolution leaves them: parts of one tensor. Of one row strides would be free.
    packed = records.new_zeros(2, 2 * keys + HV * DV)
    query, key, value = packed.split([keys, keys, HV * DV], dim=1)
    gate = records.new_zeros(2, HV)
    query, key, value = (
        part.unflatten(1, (-1, width)) for part, width in ((query, DK), (key, DK), (value, DV))
    )
    rows = Rows(query, key, value, gate, gate)
    kernels.verify(rows, layer.gating, layer.cache, batch, records.new_zeros(2, HV, DV))


def _compile_align(align: Align | None, num_sampled: torch.Tensor, indices: torch.Tensor | None) -> None:
    """Run vLLM's kernel after a commit; it skips requests whose index is negative."""
    if align is None:
        return
    like = torch.zeros_like(num_sampled[:1])
    answer = RecoverSSMPostprocessMetadata(
        num_spec_decodes=1,
        request_indices=indices,
        block_table=align.tables.tensors[0],
        num_computed_tokens=like,
        block_size=align.block_size,
    )
    state = RecoverSSMState()
    group = cast(AttentionGroup, SimpleNamespace(layer_names=["nobody's"]))
    state.record_step({"nobody's": _Answer(answer)}, [[group]], for_capture=False)
    state.commit_step(
        like,
        torch.full_like(like, -1, dtype=torch.int64),
        state_indices=torch.zeros_like(like),
        num_accepted_tokens=torch.zeros_like(like),
    )
