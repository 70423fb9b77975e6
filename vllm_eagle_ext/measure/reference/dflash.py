# SPDX-License-Identifier: Apache-2.0
"""DFlash drafting from the formulas, one block at a time.

c_t = RMSNorm(W_fc cat_i h(b_i)_t)                       per committed token, shared by all layers
X   = E[last token, MASK, .., MASK] at positions s..s+K
per layer: m = RMSNorm(X);  q = RMSNorm_q(W_q m),  k = RMSNorm_k(W_k [c, m]),  v = W_v [c, m]
           X += W_o Attn(RoPE(q), RoPE(k), v);  X += SwiGLU(RMSNorm(X))
logits = W_lm RMSNorm(X), rows 1..K; row j predicts the token at position s+j

Where the draft has them: biases; a sink per head, a score that draws weight and gives no value; a scale
of the values; a vocabulary of its own, whose logits are those of the target ids it names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from vllm_eagle_ext.measure.reference.eagle3 import project, rms_norm, swiglu
from vllm_eagle_ext.measure.reference.rotary import Rotary, read_rotary
from vllm_eagle_ext.measure.reference.weight_files import read_draft_config, read_tensors, under


@dataclass(frozen=True)
class DFlashReference:
    weights: Mapping[str, torch.Tensor]  # fp32
    embed_tokens: torch.Tensor  # [V, H]
    lm_head: torch.Tensor  # [Vd, H]
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rotary: Rotary
    mask_token: int
    causal: Sequence[bool]  # per layer
    windows: Sequence[int | None]
    value_scale: float = 1.0
    target_ids: torch.Tensor | None = None  # [Vd]; None: the draft's vocabulary is the target's

    @classmethod
    def load(
        cls,
        folder: Path,
        embed_tokens: torch.Tensor,
        lm_head: torch.Tensor,
        *,
        causal: Sequence[bool],
        windows: Sequence[int | None],
    ) -> Self:
        config, tensors = read_draft_config(folder), read_tensors(folder)
        own = config.get("dflash_config") or {}
        rotary = replace(read_rotary(config), pairs=config.get("is_neox_style") is False)
        return cls(
            weights={n: tensor.float() for n, tensor in tensors.items() if tensor.is_floating_point()},
            embed_tokens=embed_tokens.float(),
            lm_head=lm_head.float(),
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
            head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
            eps=config["rms_norm_eps"],
            rotary=rotary,
            mask_token=first_stated(own.get("mask_token_id"), config.get("mask_token_id")),
            causal=causal,
            windows=windows,
            value_scale=first_stated(own.get("attention_value_scale"), 1.0),
        )

    def context(self, aux: Sequence[torch.Tensor]) -> torch.Tensor:
        """Fuse the target's states, per aux layer [T, Ht] -> [T, H]."""
        fused = torch.cat(list(aux), dim=-1) @ self.weights["fc.weight"].T
        return rms_norm(fused, self.weights["hidden_norm.weight"], self.eps)

    def logits(self, context: torch.Tensor, anchor: int, k: int) -> torch.Tensor:
        """Compute the logits of K masks: context [s, H] at positions 0..s-1 -> [K, Vd]."""
        return self.hidden(context, anchor, k) @ self.lm_head.T

    def choices(self, context: torch.Tensor, anchor: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what greedy tokens are chosen by: scores [K, C], and the target ids [K, C]."""
        logits = self.logits(context, anchor, k)
        ids = torch.arange(logits.shape[-1]) if self.target_ids is None else self.target_ids
        return logits, ids.expand(k, -1)

    def hidden(self, context: torch.Tensor, anchor: int, k: int) -> torch.Tensor:
        """Return the masks' rows, [K, H]."""
        return self.block(context, anchor, k)[1:]

    def block(self, context: torch.Tensor, anchor: int, masks: int) -> torch.Tensor:
        """Return all rows of the block, [1 + masks, H]."""
        x = self.embed_tokens[torch.tensor([anchor] + [self.mask_token] * masks)]
        for layer in range(self.layers):
            x = self.layer(layer, x, context)
        return rms_norm(x, self.weights["norm.weight"], self.eps)

    def layer(self, layer: int, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        w = under(self.weights, f"layers.{layer}.")
        m = rms_norm(x, w["input_layernorm.weight"], self.eps)
        a = self.attention(w, m, context, self.causal[layer], self.windows[layer])
        x = x + project(w, "self_attn.o_proj", a)
        return x + swiglu(w, rms_norm(x, w["post_attention_layernorm.weight"], self.eps))

    def attention(
        self,
        w: Mapping[str, torch.Tensor],
        m: torch.Tensor,  # [1 + K, H]
        context: torch.Tensor,  # [s, H]
        causal: bool,
        window: int | None,
    ) -> torch.Tensor:  # [1 + K, heads * d]
        s, rows = len(context), torch.cat([context, m])
        q = project(w, "self_attn.q_proj", m).view(len(m), self.heads, self.head_dim)
        k, v = (
            project(w, f"self_attn.{name}_proj", rows).view(len(rows), self.kv_heads, self.head_dim)
            for name in "kv"
        )
        q = rms_norm(q, w["self_attn.q_norm.weight"], self.eps)
        k = self.norm_keys(w, k, s)
        positions = torch.arange(len(rows))[:, None, None]
        q, k, v = self.rotary(q, positions[s:]), self.rotary(k, positions), v * self.value_scale
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / self.head_dim**0.5
        distance = (torch.arange(len(m)) + s)[:, None] - torch.arange(len(rows))
        visible = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
        if window is not None:
            visible &= distance.abs() < window
        scores = scores.masked_fill(~visible, float("-inf"))
        if (sinks := w.get("self_attn.attention_sink_bias")) is not None:
            scores = torch.cat([scores, sinks[:, None, None].expand(-1, len(m), 1)], dim=-1)
        weights = scores.softmax(-1)[..., : len(rows)]
        return torch.einsum("hqk,khd->qhd", weights, v).flatten(1)

    def norm_keys(self, w: Mapping[str, torch.Tensor], k: torch.Tensor, _context: int) -> torch.Tensor:
        return rms_norm(k, w["self_attn.k_norm.weight"], self.eps)


def first_stated(*values: Any) -> Any:
    """Pick the first value that is stated."""
    return next((value for value in values if value is not None), None)
