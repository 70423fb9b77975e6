# SPDX-License-Identifier: Apache-2.0
"""EAGLE-3 with multi-head latent attention (DeepSeek-V2), from the formulas.

q = W_qb RMSNorm(W_qa u)              per head [nope | rope]
c, p = split(W_kva u);  c = RMSNorm(c)
k = [W_kb c | RoPE(p)],  v = W_vb c   p is shared by all heads; RoPE turns neighbouring pairs
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from vllm_eagle_ext.measure.reference.eagle3 import Cache, Eagle3Reference, rms_norm


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
        turn = replace(self.rotary, pairs=True)
        turned = turn(p[None], position).expand(self.heads, -1)
        k = torch.cat([kv[:, : self.nope], turned], dim=-1)
        q = torch.cat([q[:, : self.nope], turn(q[:, self.nope :], position)], dim=-1)
        cache[-1].append((k, kv[:, self.nope :]))
        return w["o_proj.weight"] @ self.attend(q, [row[layer] for row in cache]).flatten()
