# SPDX-License-Identifier: Apache-2.0
"""EAGLE-3 with multi-head latent attention (DeepSeek-V2), from the formulas.

q = W_qb RMSNorm(W_qa u)              per head [nope | rope]
c, p = split(W_kva u);  c = RMSNorm(c)
k = [W_kb c | RoPE(p)],  v = W_vb c   p is shared by all heads; RoPE turns neighbouring pairs
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from vllm_eagle_ext.reference.eagle3 import Cache, Eagle3Reference, rms_norm


def rotate_pairs(x: torch.Tensor, position: int, theta: float) -> torch.Tensor:  # [heads, d]
    half = x.shape[-1] // 2
    angle = position * theta ** (-torch.arange(half, dtype=x.dtype) / half)
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = [even * angle.cos() - odd * angle.sin(), odd * angle.cos() + even * angle.sin()]
    return torch.stack(turned, dim=-1).flatten(-2)


@dataclass(frozen=True)
class MlaReference(Eagle3Reference):
    nope: int = 0
    rope: int = 0
    value: int = 0
    latent: int = 0

    @staticmethod
    def shape_of(config: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **Eagle3Reference.shape_of({**config, "head_dim": config["v_head_dim"]}),
            "kv_heads": config["num_attention_heads"],
            "nope": config["qk_nope_head_dim"],
            "rope": config["qk_rope_head_dim"],
            "value": config["v_head_dim"],
            "latent": config["kv_lora_rank"],
        }

    def attention(self, u: torch.Tensor, position: int, cache: Cache, layer: int) -> torch.Tensor:
        w = {name.removeprefix("self_attn."): tensor for name, tensor in self.layer(layer).items()}
        low = rms_norm(w["q_a_proj.weight"] @ u, w["q_a_layernorm.weight"], self.eps)
        q = (w["q_b_proj.weight"] @ low).view(self.heads, self.nope + self.rope)
        c, p = (w["kv_a_proj_with_mqa.weight"] @ u).split([self.latent, self.rope])
        c = rms_norm(c, w["kv_a_layernorm.weight"], self.eps)
        kv = (w["kv_b_proj.weight"] @ c).view(self.heads, self.nope + self.value)
        turned = rotate_pairs(p[None], position, self.theta).expand(self.heads, -1)
        k = torch.cat([kv[:, : self.nope], turned], dim=-1)
        q = torch.cat([q[:, : self.nope], rotate_pairs(q[:, self.nope :], position, self.theta)], dim=-1)
        cache[-1].append((k, kv[:, self.nope :]))
        return w["o_proj.weight"] @ self.attend(q, [row[layer] for row in cache]).flatten()
