# SPDX-License-Identifier: Apache-2.0
"""How the layer and its commit use `ops.triton`, with vLLM's convolution around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update

from vllm_eagle_ext.replay.ops import triton
from vllm_eagle_ext.replay.ops.triton import verify
from vllm_eagle_ext.replay.ops.types import Batch, Pages, Plan

__all__ = ["committing", "convolve", "forward_committed", "prepare", "scratch_pages", "verify"]

scratch_pages = 0
forward_committed = None  # the parent's code


def prepare(batch: Batch, rows_per_request: int) -> Batch:
    del rows_per_request
    return batch


def convolve(layer: Any, x: torch.Tensor, pages: Pages, step: Any) -> torch.Tensor:
    """x [N, dim] -> [N, dim]; the inputs are appended to the windows, which a commit moves on."""
    weight = layer.conv1d.weight
    return causal_conv1d_update(
        x,
        pages.conv,
        weight.view(weight.size(0), weight.size(2)),
        layer.conv1d.bias,
        layer.activation,
        conv_state_indices=step.batch.slots,
        num_accepted_tokens=step.neutral,
        query_start_loc=step.batch.starts,
        max_query_len=pages.records.shape[1],
        validate_data=False,
    )


def committing(layers: Sequence[Any], most_requests: int) -> Callable[[Any, torch.Tensor], None]:
    """A function of (step, num_sampled [requests of the batch]) that commits these layers, in three
    launches: plan, states, windows."""
    apply = triton.Commit(
        [(layer.pages, layer.gating) for layer in layers], layers[0].conv_kernel_size - 1
    )
    device = layers[0].A_log.device
    plan = Plan(*torch.zeros(4, most_requests, dtype=torch.int32, device=device))

    def commit(step: Any, num_sampled: torch.Tensor) -> None:
        requests = step.num_requests
        batch = Batch(step.batch.slots[:requests], step.batch.starts[: requests + 1])
        mine = Plan(*(part[:requests] for part in plan))
        triton.plan(batch, num_sampled, step.rows_of, step.align, mine)
        apply(batch, mine)

    return commit
