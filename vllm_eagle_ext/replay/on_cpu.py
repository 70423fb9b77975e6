# SPDX-License-Identifier: Apache-2.0
"""How the layer and its commit use `ops.cpu`, with vLLM's convolution around it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention as stock

from vllm_eagle_ext.replay.ops import cpu
from vllm_eagle_ext.replay.ops.types import (
    Batch,
    BlockPlaces,
    BlockTables,
    HostTables,
    StateCache,
)
from vllm_eagle_ext.replay.protocol import Implementation, Step


class CpuOps:
    candidates = (Implementation("sequential", cpu, exact=True),)
    scratch_blocks = 1  # the C++ kernel has no other working memory
    gathers_by_address = False

    @property
    def least_plain_decodes(self) -> int | None:
        """None with the kernels for AMX and Arm, which are given conv states of all W - 1 + K columns.
        The others refuse one request, whose convolution's output they find not contiguous (0.32)."""
        return None if _has_fast_convolution() else 2

    def gather_blocks(self, tables: BlockTables, places: BlockPlaces, out: torch.Tensor) -> None:
        cpu.gather_blocks(tables, places, out)

    def prepare(self, batch: Batch, rows_per_request: int) -> Batch:
        return cpu.prepare(batch, rows_per_request)

    def warm_up(self, *_: object) -> None:
        pass

    def convolve(
        self, layer: QwenGatedDeltaNetAttention, x: torch.Tensor, cache: StateCache, step: Step
    ) -> torch.Tensor:
        """Rows are padded to T per request: vLLM's own code, when a request has fewer (0.32), moves its
        conv state by the wrong number of inputs."""
        (tables,) = step.batch.tables
        requests, rows = len(tables.state_blocks), tables.columns.shape[1] - 1
        is_full = len(x) == requests * rows
        padded = x.reshape(requests, rows, -1) if is_full else x.new_zeros(requests, rows, x.shape[-1])
        if not is_full:
            row_of = _row_of(tables)
            padded[row_of] = x
        run = _convolve_native if _has_native(layer) else _convolve_torch
        out = run(layer, padded, cache.conv, tables)  # [R, T, dim]
        return out.reshape(x.shape) if is_full else out[row_of]

    def forward_committed(
        self,
        layer: QwenGatedDeltaNetAttention,
        mixed_qkv: torch.Tensor,
        b: torch.Tensor,
        a: torch.Tensor,
        core_attn_out: torch.Tensor,
    ) -> None:
        stock.cpu_gdn_attention_core(mixed_qkv, b, a, core_attn_out, layer.prefix)


def _row_of(tables: HostTables) -> tuple[torch.Tensor, torch.Tensor]:
    """Request and place of each row, [N] int64 each."""
    return torch.from_numpy(tables.request), tables.row_places[1]


def _has_native(layer: QwenGatedDeltaNetAttention) -> bool:
    """As vLLM chooses for verify rows, so that results are those of the per-token scheme bit for bit."""
    return _has_fast_convolution() and layer.conv1d.weight.size(-1) == 4


def _has_fast_convolution() -> bool:
    return torch.cpu._is_amx_tile_supported() or stock.is_arm_bf16()


def _convolve_native(
    layer: QwenGatedDeltaNetAttention, x: torch.Tensor, conv: torch.Tensor, tables: HostTables
) -> torch.Tensor:
    return stock._causal_conv1d_update_cpu(
        x=x.contiguous(),
        conv_states=conv,
        weight=layer.conv1d.weight,
        bias=layer.conv1d.bias,
        silu_activation=layer.activation == "silu",
        conv_state_indices=tables.conv_blocks,
        is_weight_packed=True,
        num_accepted_tokens=tables.ones,
    )


def _convolve_torch(
    layer: QwenGatedDeltaNetAttention, x: torch.Tensor, conv: torch.Tensor, tables: HostTables
) -> torch.Tensor:
    weight = stock._unpacked_conv_weight(layer)  # [dim, W]
    blocks = tables.conv_blocks.long()
    history = conv[blocks, :, : weight.shape[1] - 1]
    inputs = torch.cat([history, x.transpose(1, 2).to(conv.dtype)], dim=-1)  # [R, dim, W - 1 + T]
    out = F.conv1d(inputs, weight.unsqueeze(1), layer.conv1d.bias, groups=x.shape[-1])
    if layer.activation == "silu":
        out = F.silu(out)
    conv[blocks] = inputs[:, :, 1:]
    return out.transpose(1, 2).to(x.dtype).contiguous()  # of one request it would stay a view of columns
