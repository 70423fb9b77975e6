"""EAGLE-3 drafting from the formulas, one row at a time.

Row P holds the token t_{P+1} and the fused feature g_P, stands at position P and predicts t_{P+2}:

    g = W_fc cat_k a_k          a_k = h(b_k), or RMSNorm_k(h(b_k)) with `fc_norm`
    e = RMSNorm(E[t]),  x = RMSNorm(g)
    q, k, v = W cat[e, x];      r = g + W_o Attn(RoPE(q), RoPE(k), v)
    y = r + SwiGLU(RMSNorm(r));  z = RMSNorm(y)
    logits = W_lm z;             the next row's g is y, or z with `norm_output`
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

Cache = list[tuple[torch.Tensor, torch.Tensor]]  # per row: key, value, each [kv heads, d]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rotate(x: torch.Tensor, position: int, theta: float) -> torch.Tensor:  # [heads, d]
    half = x.shape[-1] // 2
    angle = position * theta ** (-torch.arange(half, dtype=x.dtype) / half)
    low, high = x[..., :half], x[..., half:]
    return torch.cat(
        [low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()], dim=-1
    )


@dataclass(frozen=True)
class Draft:
    tokens: list[int]
    margins: list[float]  # per token: logit of the first choice minus that of the second


@dataclass(frozen=True)
class Eagle3Reference:
    weights: Mapping[str, torch.Tensor]  # fp32, published names with midlayer. -> layers.0.
    embed_tokens: torch.Tensor  # [V, H]
    lm_head: torch.Tensor  # [Vd, H]
    target_ids: torch.Tensor  # [Vd]
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float
    fc_norm: bool
    norm_output: bool

    @classmethod
    def load(
        cls, folder: Path, embed_tokens: torch.Tensor, target_lm_head: torch.Tensor
    ) -> Eagle3Reference:
        """The published file; embeddings, and the head where the draft has none, are the target's."""
        config = json.loads((folder / "config.json").read_text())
        tensors = load_file(folder / "model.safetensors")
        weights = {
            name.replace("midlayer.", "layers.0."): tensor.float()
            for name, tensor in tensors.items()
            if tensor.is_floating_point()
        }
        lm_head = weights.get("lm_head.weight", target_lm_head.float())
        ids = torch.arange(lm_head.shape[0])
        return cls(
            weights=weights,
            embed_tokens=embed_tokens.float(),
            lm_head=lm_head,
            target_ids=ids + tensors["d2t"] if "d2t" in tensors else ids,
            **cls.shape_of(config),
        )

    @staticmethod
    def shape_of(config: Mapping[str, Any]) -> dict[str, Any]:
        heads = config["num_attention_heads"]
        return {
            "heads": heads,
            "kv_heads": config["num_key_value_heads"],
            "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
            "eps": config["rms_norm_eps"],
            "theta": config.get("rope_theta", 10000.0),
            "fc_norm": bool(config.get("fc_norm")),
            "norm_output": bool(config.get("norm_output")),
        }

    def with_pre_norm_feedback(self) -> Eagle3Reference:
        return replace(self, norm_output=False)

    def with_permuted_fc_norms(self, order: Sequence[int]) -> Eagle3Reference:
        permuted = {
            f"fc_norm.{k}.weight": self.weights[f"fc_norm.{o}.weight"] for k, o in enumerate(order)
        }
        return replace(self, weights={**self.weights, **permuted})

    def fuse(self, aux: Sequence[torch.Tensor]) -> torch.Tensor:
        """aux: per boundary [.., Ht] -> [.., H]."""
        if self.fc_norm:
            aux = [rms_norm(a, self.weights[f"fc_norm.{k}.weight"], self.eps) for k, a in enumerate(aux)]
        return torch.cat(list(aux), dim=-1) @ self.weights["fc.weight"].T

    def row(
        self, token: int, g: torch.Tensor, position: int, cache: Cache
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One row: logits [Vd] and feedback [H]. Appends the row's key and value to the cache."""
        w = {name.removeprefix("layers.0."): tensor for name, tensor in self.weights.items()}
        e = rms_norm(self.embed_tokens[token], w["input_layernorm.weight"], self.eps)
        x = rms_norm(g, w["hidden_norm.weight"], self.eps)
        both = torch.cat([e, x])
        q = (w["self_attn.q_proj.weight"] @ both).view(self.heads, self.head_dim)
        k = (w["self_attn.k_proj.weight"] @ both).view(self.kv_heads, self.head_dim)
        v = (w["self_attn.v_proj.weight"] @ both).view(self.kv_heads, self.head_dim)
        q, k = rotate(q, position, self.theta), rotate(k, position, self.theta)
        cache.append((k, v))
        r = g + w["self_attn.o_proj.weight"] @ self.attend(q, cache).flatten()
        m = rms_norm(r, w["post_attention_layernorm.weight"], self.eps)
        gate, up = w["mlp.gate_proj.weight"] @ m, w["mlp.up_proj.weight"] @ m
        y = r + w["mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)
        z = rms_norm(y, w["norm.weight"], self.eps)
        return self.lm_head @ z, z if self.norm_output else y

    def attend(self, q: torch.Tensor, cache: Cache) -> torch.Tensor:  # [heads, d] -> [heads, d]
        group = self.heads // self.kv_heads
        keys = torch.stack([k for k, _ in cache], dim=1).repeat_interleave(group, dim=0)
        values = torch.stack([v for _, v in cache], dim=1).repeat_interleave(group, dim=0)
        scores = (keys @ q[..., None])[..., 0] / self.head_dim**0.5  # [heads, rows]
        return (scores.softmax(-1)[..., None] * values).sum(1)

    def true_rows(
        self, tokens: Sequence[int], aux: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], Cache]:
        """Rows 0..len(tokens)-2 on true target features: per row logits, feedback, and the cache."""
        fused = self.fuse(aux)
        cache: Cache = []
        rows = [self.row(tokens[p + 1], fused[p], p, cache) for p in range(len(tokens) - 1)]
        return [logits for logits, _ in rows], [feedback for _, feedback in rows], cache

    def draft(
        self, start: int, k: int, rows: tuple[list[torch.Tensor], list[torch.Tensor], Cache]
    ) -> Draft:
        """The chain of k tokens that starts at row `start`, on `true_rows`."""
        logits, g, cache = rows[0][start], rows[1][start], rows[2][: start + 1]
        tokens: list[int] = []
        margins: list[float] = []
        for step in range(k):
            if step:
                logits, g = self.row(tokens[-1], g, start + step, cache)
            best = logits.topk(2)
            tokens.append(int(self.target_ids[best.indices[0]]))
            margins.append(float(best.values[0] - best.values[1]))
        return Draft(tokens, margins)
