"""DFlash drafting from the formulas, one block at a time.

c_t = RMSNorm(W_fc cat_i h(b_i)_t)                       per committed token, shared by all layers
X   = E[last token, MASK, .., MASK] at positions s..s+K
per layer: m = RMSNorm(X);  q = RMSNorm_q(W_q m),  k = RMSNorm_k(W_k [c, m]),  v = W_v [c, m]
           X += W_o Attn(RoPE(q), RoPE(k), v);  X += SwiGLU(RMSNorm(X))
logits = W_lm RMSNorm(X), rows 1..K; row j predicts the token at position s+j
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.reference.eagle3 import rms_norm, rotate


@dataclass(frozen=True)
class DFlashReference:
    weights: Mapping[str, torch.Tensor]  # fp32
    embed_tokens: torch.Tensor  # [V, H]
    lm_head: torch.Tensor  # [V, H]
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float
    mask_token: int
    causal: Sequence[bool]  # per layer
    windows: Sequence[int | None]

    @classmethod
    def load(
        cls,
        folder: Path,
        embed_tokens: torch.Tensor,
        lm_head: torch.Tensor,
        *,
        causal: Sequence[bool],
        windows: Sequence[int | None],
    ) -> DFlashReference:
        config = json.loads((folder / "config.json").read_text())
        config = {**config.get("transformer_layer_config", {}), **config}  # speculators
        tensors = load_file(folder / "model.safetensors")
        return cls(
            weights={name: tensor.float() for name, tensor in tensors.items()},
            embed_tokens=embed_tokens.float(),
            lm_head=lm_head.float(),
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            eps=config["rms_norm_eps"],
            theta=config["rope_theta"],
            mask_token=config.get("dflash_config", config)["mask_token_id"],
            causal=causal,
            windows=windows,
        )

    def context(self, aux: Sequence[torch.Tensor]) -> torch.Tensor:
        """aux: per boundary [T, Ht] -> [T, H]."""
        fused = torch.cat(list(aux), dim=-1) @ self.weights["fc.weight"].T
        return rms_norm(fused, self.weights["hidden_norm.weight"], self.eps)

    def logits(self, context: torch.Tensor, anchor: int, k: int) -> torch.Tensor:
        """context [s, H] at positions 0..s-1 -> [K, V]."""
        tokens = torch.tensor([anchor] + [self.mask_token] * k)
        x = self.embed_tokens[tokens]
        for layer in range(self.layers):
            x = self.layer(layer, x, context)
        x = rms_norm(x, self.weights["norm.weight"], self.eps)
        return x[1:] @ self.lm_head.T

    def layer(self, layer: int, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        prefix = f"layers.{layer}."
        w = {n.removeprefix(prefix): t for n, t in self.weights.items() if n.startswith(prefix)}
        m = rms_norm(x, w["input_layernorm.weight"], self.eps)
        a = self.attention(w, m, context, self.causal[layer], self.windows[layer])
        x = x + a @ w["self_attn.o_proj.weight"].T
        m = rms_norm(x, w["post_attention_layernorm.weight"], self.eps)
        gate, up = m @ w["mlp.gate_proj.weight"].T, m @ w["mlp.up_proj.weight"].T
        return x + (gate * torch.sigmoid(gate) * up) @ w["mlp.down_proj.weight"].T

    def attention(
        self,
        w: Mapping[str, torch.Tensor],
        m: torch.Tensor,  # [1 + K, H]
        context: torch.Tensor,  # [s, H]
        causal: bool,
        window: int | None,
    ) -> torch.Tensor:  # [1 + K, heads * d]
        s, rows = len(context), torch.cat([context, m])
        q = (m @ w["self_attn.q_proj.weight"].T).view(len(m), self.heads, self.head_dim)
        k = (rows @ w["self_attn.k_proj.weight"].T).view(len(rows), self.kv_heads, self.head_dim)
        v = (rows @ w["self_attn.v_proj.weight"].T).view(len(rows), self.kv_heads, self.head_dim)
        q = rms_norm(q, w["self_attn.q_norm.weight"], self.eps)
        k = self.norm_keys(w, k, s)
        positions = torch.arange(len(rows))[:, None, None]
        q, k = rotate(q, positions[s:], self.theta), rotate(k, positions, self.theta)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / self.head_dim**0.5
        distance = (torch.arange(len(m)) + s)[:, None] - torch.arange(len(rows))
        visible = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
        if window is not None:
            visible &= distance.abs() < window
        scores = scores.masked_fill(~visible, float("-inf"))
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)

    def norm_keys(self, w: Mapping[str, torch.Tensor], k: torch.Tensor, _context: int) -> torch.Tensor:
        return rms_norm(k, w["self_attn.k_norm.weight"], self.eps)
