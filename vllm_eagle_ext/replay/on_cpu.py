# SPDX-License-Identifier: Apache-2.0
"""How the layer and its commit use `ops.cpu`, with vLLM's convolution around it."""

from __future__ import annotations

from copy import copy

import torch
import torch.nn.functional as F
from vllm.forward_context import get_forward_context
from vllm.lora.layers.base import BaseLayerWithLoRA
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention as stock
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadata

from vllm_eagle_ext.replay.ops import cpu
from vllm_eagle_ext.replay.ops.types import (
    Batch,
    BlockPlaces,
    BlockTables,
    HostTables,
    Implementation,
    ReplayOps,
    StateCache,
    Step,
)

_PLAIN_WEIGHTS = "_cpu_unpacked_conv_weight"


class CpuOps(ReplayOps):
    candidates = (Implementation("sequential", cpu, exact=True),)
    scratch_blocks = 1  # the C++ kernel has no other working memory
    gathers_by_address = False

    @property
    def can_decode_in_place(self) -> bool:
        """Say no with the kernels for AMX and Arm, which are given conv states of all W - 1 + K
        columns."""
        return not _has_fast_convolution()

    def gather_blocks(self, tables: BlockTables, places: BlockPlaces, out: torch.Tensor) -> None:
        cpu.gather_blocks(tables, places, out)

    def prepare(self, batch: Batch, rows_per_request: int) -> Batch:
        return cpu.prepare(batch, rows_per_request)

    def convolve(
        self, layer: QwenGatedDeltaNetAttention, x: torch.Tensor, cache: StateCache, step: Step
    ) -> torch.Tensor:
        """Convolve the rows, padded to T per request. When a request has fewer, vLLM's own code (0.32)
        moves its conv state by the wrong number of inputs."""
        _show_plain_weights(layer)
        (tables,) = step.batch.host_tables
        requests, rows = len(tables.state_blocks), tables.columns.shape[1] - 1
        is_full = len(x) == requests * rows
        padded = x.reshape(requests, rows, -1) if is_full else x.new_zeros(requests, rows, x.shape[-1])
        if not is_full:
            row_of = torch.from_numpy(tables.request), tables.row_places[1]  # its request and place
            padded[row_of] = x
        run = _convolve_native if _has_native(layer) else _convolve_torch
        out = run(layer, padded, cache.conv, tables)  # [R, T, dim]
        return out.reshape(x.shape) if is_full else out[row_of]

    def forward_committed(self, layer: QwenGatedDeltaNetAttention, *tensors: torch.Tensor) -> None:
        _show_plain_weights(layer)
        metadata = _with_readable_blocks(layer)
        is_packed = hasattr(layer.conv1d, _PLAIN_WEIGHTS)  # vLLM keeps the plain weights next to these
        if metadata is None or metadata.num_prefills or not is_packed:
            stock.cpu_gdn_attention_core(*tensors, layer.prefix)
        else:
            stock._cpu_gdn_attention_nonspec(_narrow_view(layer), metadata, *tensors)


def _show_plain_weights(layer: QwenGatedDeltaNetAttention) -> None:
    """Let vLLM find the convolution's weights as they were before it packed them.

    LoRA wraps the convolution, too, and vLLM looks on the wrapper for them (0.32,
    `ops/cpu/gdn_attention.py:_unpacked_conv_weight`): it would take the packed ones for plain. A reload
    of the weights packs them again.
    """
    convolution = layer.conv1d
    if isinstance(convolution, BaseLayerWithLoRA):
        plain = getattr(convolution.base_layer, _PLAIN_WEIGHTS, None)
        if plain is not getattr(convolution, _PLAIN_WEIGHTS, None):
            setattr(convolution, _PLAIN_WEIGHTS, plain)


def _with_readable_blocks(layer: QwenGatedDeltaNetAttention) -> GDNAttentionMetadata | None:
    """Return the metadata of the layer's group in a step with rows, its state blocks made contiguous.

    The kernels read the blocks as if they stood next to each other. For one request they stand in a
    column of the block table whose stride PyTorch takes for contiguous, and vLLM's `.contiguous()`
    leaves.
    """
    by_layer = get_forward_context().attn_metadata
    metadata = by_layer.get(layer.prefix) if isinstance(by_layer, dict) else None
    if metadata is None or not metadata.num_actual_tokens:
        return None
    blocks = metadata.non_spec_state_indices_tensor
    if blocks is not None and blocks.stride(0) != 1:
        metadata.non_spec_state_indices_tensor = blocks.clone(memory_format=torch.contiguous_format)
    return metadata


def _narrow_view(layer: QwenGatedDeltaNetAttention) -> QwenGatedDeltaNetAttention:
    """Return the layer with its conv state cut to the W - 1 columns of an engine without drafts. With
    these vLLM runs its compiled convolution with the weights as they were packed. The view is kept until
    another cache is bound."""
    conv, state, _ = layer.kv_cache
    view = layer.__dict__.get("narrow_view")
    if view is None or view.kv_cache[1] is not state:
        layer.__dict__.pop("narrow_view", None)  # of a cache that is no more
        view = layer.__dict__["narrow_view"] = copy(layer)
        columns = layer.conv1d.weight.size(-1) - 1
        view.kv_cache = (conv.narrow(-1 if is_conv_state_dim_first() else -2, 0, columns), state)
    return view


def _has_native(layer: QwenGatedDeltaNetAttention) -> bool:
    """Choose as vLLM does for verify rows, so that all bits are those of the per-token scheme."""
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
