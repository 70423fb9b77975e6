# SPDX-License-Identifier: Apache-2.0
"""DFlash drafting from the formulas, one block at a time.

c_t = RMSNorm(W_fc cat_i h(b_i)_t)                       per committed token, shared by all layers
X   = E[last token, MASK, .., MASK] at positions s..s+K
per layer: m = RMSNorm(X);  q = RMSNorm_q(W_q m),  k = RMSNorm_k(W_k [c, m]),  v = W_v [c, m]
           X += W_o Attn(RoPE(q), RoPE(k), v);  X += SwiGLU(RMSNorm(X))
logits = W_lm RMSNorm(X), rows 1..K; row j predicts the token at position s+j

Where the draft has them: biases behind W_q, W_k, W_v, W_o; a sink per head, a score that draws weight
and gives no value; YaRN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from vllm_eagle_ext.reference.eagle3 import rms_norm
from vllm_eagle_ext.reference.files import read_config, read_tensors


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
    yarn: Mapping[str, float] | None = None

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
        config, tensors = read_config(folder), read_tensors(folder)
        scaling = config.get("rope_scaling") or {}
        return cls(
            weights={name: tensor.float() for name, tensor in tensors.items()},
            embed_tokens=embed_tokens.float(),
            lm_head=lm_head.float(),
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            eps=config["rms_norm_eps"],
            theta=config.get("rope_theta") or config["rope_parameters"]["rope_theta"],
            mask_token=config.get("dflash_config", config)["mask_token_id"],
            causal=causal,
            windows=windows,
            yarn=scaling if scaling.get("rope_type") == "yarn" else None,
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
        x = x + project(w, "o", a)
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
        q = project(w, "q", m).view(len(m), self.heads, self.head_dim)
        k = project(w, "k", rows).view(len(rows), self.kv_heads, self.head_dim)
        v = project(w, "v", rows).view(len(rows), self.kv_heads, self.head_dim)
        q = rms_norm(q, w["self_attn.q_norm.weight"], self.eps)
        k = self.norm_keys(w, k, s)
        positions = torch.arange(len(rows))[:, None, None]
        q, k = self.rotate(q, positions[s:]), self.rotate(k, positions)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / self.head_dim**0.5
        distance = (torch.arange(len(m)) + s)[:, None] - torch.arange(len(rows))
        visible = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
        if window is not None:
            visible &= distance.abs() < window
        scores = scores.masked_fill(~visible, float("-inf"))
        sinks = w.get("self_attn.attention_sink_bias")
        if sinks is not None:
            scores = torch.cat([scores, sinks[:, None, None].expand(-1, len(m), 1)], dim=-1)
        weights = scores.softmax(-1)[..., : len(rows)]
        return torch.einsum("hqk,khd->qhd", weights, v).flatten(1)

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:  # [.., d]
        half = self.head_dim // 2
        frequency = self.theta ** (-torch.arange(half, dtype=x.dtype) / half)
        size = 1.0
        if self.yarn is not None:
            frequency, size = stretch(frequency, self.head_dim, self.theta, self.yarn)
        cos, sin = (positions * frequency).cos() * size, (positions * frequency).sin() * size
        low, high = x[..., :half], x[..., half:]
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)

    def norm_keys(self, w: Mapping[str, torch.Tensor], k: torch.Tensor, _context: int) -> torch.Tensor:
        return rms_norm(k, w["self_attn.k_norm.weight"], self.eps)


def project(w: Mapping[str, torch.Tensor], name: str, x: torch.Tensor) -> torch.Tensor:
    projected = x @ w[f"self_attn.{name}_proj.weight"].T
    bias = w.get(f"self_attn.{name}_proj.bias")
    return projected if bias is None else projected + bias


def stretch(
    frequency: torch.Tensor, d: int, theta: float, yarn: Mapping[str, float]
) -> tuple[torch.Tensor, float]:
    """YaRN (Peng et al., 2023): slow frequencies are divided by the factor, fast ones kept, with a ramp
    between those that turn `beta_slow` and `beta_fast` times in the original length."""

    def turning(times: float) -> float:  # the dimension that turns so often
        length = yarn["original_max_position_embeddings"]
        return d * math.log(length / (times * 2 * math.pi)) / (2 * math.log(theta))

    first, last = turning(yarn["beta_fast"]), turning(yarn["beta_slow"])
    if yarn.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, d - 1)
    ramp = ((torch.arange(d // 2) - first) / (last - first)).clamp(0, 1)
    size = 0.1 * math.log(yarn["factor"]) + 1
    return frequency * (1 - ramp) + frequency / yarn["factor"] * ramp, size
