# SPDX-License-Identifier: Apache-2.0
"""The gated delta net layer with one state block per request.

Differences from vLLM's layer: the block has a third part for a step's recorded inputs and there are no
blocks for draft tokens; verify rows run `ops.*.verify` and do not write the committed state. Prefills
and plain decodes run the parent's code. Nothing changes in projections, gates and norm.

Maths: gated delta rule (Yang et al., arXiv 2412.06464); state recovery by replay of raw inputs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.model_executor.offloader.base import NoopOffloader, get_offloader
from vllm.v1.attention.backend import AttentionBackend
from vllm.v1.attention.backends.gdn_attn import GDNAttentionBackend, GDNAttentionMetadataBuilder
from vllm.v1.kv_cache_interface import MambaSpec

from vllm_eagle_ext.memory.state_blocks import record_width
from vllm_eagle_ext.replay.metadata import ReplayMetadata, ReplayMetadataBuilder
from vllm_eagle_ext.replay.on_platform import replay_ops
from vllm_eagle_ext.replay.ops.types import Gating, ReplayKernels, Rows, StateCache, Step


class ReplayBackend(GDNAttentionBackend):
    """vLLM's attention backend of the replaying layers: it says who builds their metadata."""

    @staticmethod
    def get_name() -> str:
        return "GDN_EAGLE_EXT_REPLAY"

    @staticmethod
    def get_builder_cls() -> type[GDNAttentionMetadataBuilder]:
        return ReplayMetadataBuilder

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        """Let adaptive verification trim drafts on the device: a step's rows are read only there. vLLM
        says no for all recurrent states, whose metadata may go by the host's lengths (0.32)."""
        return True


class ReplayGatedDeltaNetAttention(QwenGatedDeltaNetAttention):
    """Shapes per rank: N rows, H key heads of width DK, HV value heads of width DV,
    dim = 2 * H * DK + HV * DV."""

    kv_cache: tuple[torch.Tensor, ...]  # conv state, committed state, records
    replay_kernels: ReplayKernels  # the kernels that verify and commit
    # Copies for weights that vLLM offloads. After a forward, a parameter's address may hold another
    # layer's values (prefetching), or host memory (without UVA). The commit runs after the forward.
    kept_gating: Gating | None = None

    @classmethod
    def adopt(cls, layer: QwenGatedDeltaNetAttention, kernels: ReplayKernels) -> None:
        """Make one of vLLM's layers ours, in place: it is registered under its prefix already."""
        if type(layer) is not QwenGatedDeltaNetAttention:
            raise TypeError(f"{type(layer).__name__} is no layer that can replay")
        layer.__class__ = cls
        layer.replay_kernels = kernels
        if not isinstance(get_offloader(), NoopOffloader):
            device = torch.get_default_device()  # while vLLM builds a model, the one it runs on
            live = (layer.A_log, layer.dt_bias)
            layer.kept_gating = Gating(*(torch.empty_like(each.data, device=device) for each in live))
        # vLLM's kernels that fuse verify with the per-token scheme's stores are out.
        layer.enable_fused_gdn_spec_decode = False
        # Its op calls `_forward_core` on every platform; that of a CPU has no way into the layer.
        layer._forward_method = layer.forward_cuda

    @property
    def record_shape(self) -> tuple[int, int]:
        heads = self.num_k_heads // self.tp_size, self.num_v_heads // self.tp_size
        width = record_width(heads[0], self.head_k_dim, heads[1], self.head_v_dim)
        return self.num_spec + 1, width

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> MambaSpec:
        spec: MambaSpec = super().get_kv_cache_spec(vllm_config)
        return replace(
            spec,
            shapes=(*spec.shapes, self.record_shape),
            dtypes=(*spec.dtypes, self.model_config.dtype),
            num_speculative_blocks=replay_ops().scratch_blocks,
        )

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:  # [P, 1, 1, block bytes]
        super().bind_kv_cache(kv_cache)
        dtype, shape = self.model_config.dtype, self.record_shape
        start = sum(part[0].numel() * part.element_size() for part in self.kv_cache)
        end = start + shape[0] * shape[1] * dtype.itemsize
        records = kv_cache.squeeze(dim=(1, 2))[:, start:end].view(dtype).view(-1, *shape)
        self.kv_cache = (*self.kv_cache, records)

    def get_attn_backend(self) -> type[AttentionBackend]:
        return ReplayBackend

    @property
    def state_cache(self) -> StateCache:
        conv, state, records = self.kv_cache
        return StateCache(conv if is_conv_state_dim_first() else conv.transpose(-1, -2), state, records)

    @property
    def gating(self) -> Gating:
        return self.kept_gating or Gating(self.A_log, self.dt_bias)

    def _forward_core(
        self,
        mixed_qkv: torch.Tensor,  # [tokens, dim]
        b: torch.Tensor,  # [tokens, HV]
        a: torch.Tensor,  # [tokens, HV]
        core_attn_out: torch.Tensor,  # [tokens, HV, DV]
    ) -> None:
        metadata = get_forward_context().attn_metadata
        mine = metadata.get(self.prefix) if isinstance(metadata, dict) else None
        step = mine.step if isinstance(mine, ReplayMetadata) else None
        if step is None:
            # Prompts and plain decodes: each row's state is the request's state at once.
            replay_ops().forward_committed(self, mixed_qkv, b, a, core_attn_out)
            return
        if self.kept_gating is not None:  # here the parameters are this layer's own, updates included
            self.kept_gating.A_log.copy_(self.A_log)
            self.kept_gating.dt_bias.copy_(self.dt_bias)
        if step.rows is None:
            n = step.num_rows
            self._verify(mixed_qkv[:n], b[:n], a[:n], core_attn_out[:n], step=step)
        else:
            verify = partial(self._verify, step=step)
            committed = partial(replay_ops().forward_committed, self)
            for index, forward in ((step.rows, verify), (step.other_rows, committed)):
                out = torch.zeros_like(core_attn_out[: len(index)])
                forward(mixed_qkv[index], b[index], a[index], out)
                core_attn_out.index_copy_(0, index, out)

    def _verify(
        self,
        mixed_qkv: torch.Tensor,  # [N, dim]
        b: torch.Tensor,  # [N, HV]
        a: torch.Tensor,  # [N, HV]
        out: torch.Tensor,  # [N, HV, DV]
        *,
        step: Step,
    ) -> None:
        cache, ops = self.state_cache, replay_ops()
        convolved = ops.convolve(self, mixed_qkv, cache, step)
        sizes = [self.key_dim // self.tp_size] * 2 + [self.value_dim // self.tp_size]
        query, key, value = convolved.split(sizes, dim=-1)
        rows = Rows(
            query.unflatten(-1, (-1, self.head_k_dim)),
            key.unflatten(-1, (-1, self.head_k_dim)),
            value.unflatten(-1, (-1, self.head_v_dim)),
            a,
            b,
        )
        self.replay_kernels.verify(rows, self.gating, cache, step.batch, out)
