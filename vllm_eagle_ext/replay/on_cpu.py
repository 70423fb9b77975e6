# SPDX-License-Identifier: Apache-2.0
"""How the layer and its commit use `ops.cpu`, with vLLM's convolution around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention as stock

from vllm_eagle_ext.replay.ops import cpu
from vllm_eagle_ext.replay.ops.cpu import Step, prepare, verify
from vllm_eagle_ext.replay.ops.types import Pages, Plan

__all__ = ["committing", "convolve", "forward_committed", "prepare", "scratch_pages", "verify"]

scratch_pages = 1  # per request: the C++ kernel has no other working memory
forward_committed: Callable[..., None] = stock.cpu_gdn_attention_core


def convolve(layer: Any, x: torch.Tensor, pages: Pages, step: Any) -> torch.Tensor:
    """x [N, dim] -> [N, dim]; the inputs are appended to the windows, which a commit moves on.

    Rows are padded to T per request: vLLM's own code, when a request has fewer (0.32), rolls its
    window by the wrong number of inputs.
    """
    batch: Step = step.batch
    requests, rows = len(batch.slots), batch.table.shape[1] - 1
    is_full = len(x) == requests * rows
    padded = x.reshape(requests, rows, -1) if is_full else x.new_zeros(requests, rows, x.shape[-1])
    if not is_full:
        row_of = _row_of(batch)
        padded[row_of] = x
    run = _convolve_native if _has_native(layer) else _convolve_torch
    out = run(layer, padded, pages.conv, batch)  # [R, T, dim]
    return out.reshape(x.shape) if is_full else out[row_of]


def _row_of(batch: Step) -> tuple[torch.Tensor, torch.Tensor]:
    """Request and place of each row, [N] int64 each."""
    return torch.from_numpy(batch.request), batch.row_places[1]


def _has_native(layer: Any) -> bool:
    """As vLLM chooses for verify rows, so that results are those of the slot scheme bit for bit."""
    is_fast = torch.cpu._is_amx_tile_supported() or stock.is_arm_bf16()
    return is_fast and layer.conv1d.weight.size(-1) == 4


def _convolve_native(layer: Any, x: torch.Tensor, conv: torch.Tensor, batch: Step) -> torch.Tensor:
    return stock._causal_conv1d_update_cpu(
        x=x.contiguous(),
        conv_states=conv,
        weight=layer.conv1d.weight,
        bias=layer.conv1d.bias,
        silu_activation=layer.activation == "silu",
        conv_state_indices=batch.pages,
        is_weight_packed=True,
        num_accepted_tokens=batch.neutral,
    )


def _convolve_torch(layer: Any, x: torch.Tensor, conv: torch.Tensor, batch: Step) -> torch.Tensor:
    weight = stock._unpacked_conv_weight(layer)  # [dim, W]
    slots = batch.pages.long()
    history = conv[slots, :, : weight.shape[1] - 1]
    inputs = torch.cat([history, x.transpose(1, 2).to(conv.dtype)], dim=-1)  # [R, dim, W - 1 + T]
    out = F.conv1d(inputs, weight.unsqueeze(1), layer.conv1d.bias, groups=x.shape[-1])
    if layer.activation == "silu":
        out = F.silu(out)
    conv[slots] = inputs[:, :, 1:]
    return out.transpose(1, 2).to(x.dtype).contiguous()  # of one request it would stay a view of columns


def committing(layers: Sequence[Any], most_requests: int) -> Callable[[Any, torch.Tensor], None]:
    """A function of (step, num_sampled [requests of the batch]) that commits these layers."""
    apply = cpu.Commit([(layer.pages, layer.gating) for layer in layers], layers[0].conv_kernel_size - 1)
    plan = Plan(*torch.zeros(4, most_requests, dtype=torch.int32))

    def commit(step: Any, num_sampled: torch.Tensor) -> None:
        batch = step.batch.batch
        mine = Plan(*(part[: len(batch.slots)] for part in plan))
        cpu.plan(batch, num_sampled, step.rows_of, step.align, mine)
        apply(step.batch, mine)

    return commit
