# SPDX-License-Identifier: Apache-2.0
"""DFlash drafter on vLLM's Qwen3-type decoder layer.

Differences from vLLM's class: embeddings may be scaled, which vLLM does only for DFlash 2; configs and
weights are strict, see `ResolvedDraft`; on a CPU each layer gets its own norm of the context's keys;
what vLLM derives from the weights follows them in an update.

Shapes, with T tokens, H draft width, Ht target width, n aux layers, V vocabulary:

`combine_hidden_states`: [T, n * Ht] -> [T, H], columns in ascending order of aux layer.
`precompute_and_store_context_kv`: states [T, H], positions [T] -> keys and values in the draft's cache.
`forward`: ids [T], positions [T] -> [T, H]; a block is the last sampled token and K mask tokens.
`compute_logits`: [T, H] -> [T, V].

Maths: DFlash (z-lab), block diffusion conditioned on the target's states; X = scale * E[..].
"""

from __future__ import annotations

import torch
from vllm import _custom_ops as ops
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context, is_forward_context_available
from vllm.model_executor.models.qwen3_dflash import DFlashQwen3ForCausalLM, DFlashQwen3Model

from vllm_eagle_ext.families.parts.after_reload import AfterReload
from vllm_eagle_ext.families.parts.resolved import ResolvedDraft

_FUSED = ("_fused_kv_weight", "_fused_kv_bias", "_k_norm_weights")


class DFlashEagleExtQwen3Model(DFlashQwen3Model):
    _fused_kv_weight: torch.Tensor | None
    _fused_kv_bias: torch.Tensor | None

    def __init__(self, *, vllm_config: VllmConfig, start_layer_id: int = 0, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, start_layer_id=start_layer_id, prefix=prefix)
        self.embedding_scale = float(self.config.dflash_config["input_embedding_scale"])
        self._is_outdated = False
        self.after_reload = AfterReload(self._update_fused_kv_buffers)

    def _build_fused_kv_buffers(self) -> None:
        """Build the buffers in place, since captured graphs read them. In a layerwise reload, build them
        only when it is over: until then weights and rope's table are without values."""
        layers = torch.nn.ModuleList([self.layers, self.hidden_norm])
        if any(each.is_meta for each in (*layers.parameters(), *layers.buffers())):
            self._is_outdated = True
            return
        before = {name: getattr(self, name, None) for name in _FUSED}
        super()._build_fused_kv_buffers()
        if self._fused_kv_weight is not None and not self._fused_kv_weight.numel():
            # vLLM's CPU layers drop the weights that they have packed; they still compute with them.
            self._fused_kv_weight = self._fused_kv_bias = None
        with torch.inference_mode():  # dummy weights' buffers are made in a step
            for name, buffer in before.items():
                now = getattr(self, name)
                if buffer is not None and now is not None:
                    setattr(self, name, buffer.copy_(now))
        self._is_outdated = False

    def _update_fused_kv_buffers(self) -> None:
        if self._is_outdated:
            self._build_fused_kv_buffers()

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:  # [T] -> [T, H]
        embeddings = super().embed_input_ids(input_ids)
        return embeddings if self.embedding_scale == 1 else embeddings * self.embedding_scale

    def _normalize_context_k(self, all_k: torch.Tensor) -> torch.Tensor:  # [L, T, kv heads, d]
        """Normalise each layer's keys in a call of its own on a CPU. The parent hands all layers'
        weights to one call of `rms_norm`, whose CPU kernel reads the first row of them for every layer.
        Only layer 0 would be right (vLLM 0.32)."""
        if not all_k.is_cpu:
            return super()._normalize_context_k(all_k)
        normed = torch.empty_like(all_k)
        for layer, weight in enumerate(self._k_norm_weights):
            ops.rms_norm(normed[layer], all_k[layer], weight, self._rms_norm_eps)
        return normed


class DFlashEagleExtQwen3ForCausalLM(ResolvedDraft, DFlashQwen3ForCausalLM):
    """DFlash on Qwen3 layers, with scaled embeddings."""

    model_cls = DFlashEagleExtQwen3Model

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> torch.Tensor:  # [T], [T] -> [T, H]; without masks [0, H]
        """Run the draft, except with K = 0. V1 lays out blocks of 1 + K rows, and with K = 0 nothing is
        read of them. What later blocks read of the cache are the context's keys and values, which are
        stored by now."""
        if _has_no_masks():
            return self.lm_head.weight.new_empty(0, self.config.hidden_size)
        return super().forward(input_ids, positions, inputs_embeds)


def _has_no_masks() -> bool:
    """Say whether all blocks of a step have one row; without attention's metadata that is not known."""
    layers = get_forward_context().attn_metadata if is_forward_context_available() else None
    if not isinstance(layers, dict) or not layers:
        return False
    return all(getattr(layer, "max_query_len", None) == 1 for layer in layers.values())
