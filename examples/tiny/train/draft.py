"""The trainable EAGLE-3 draft: all chain starts of a window at once, unrolled over its own output.

The maths is that of EAGLE-3 (Li et al., 2025, training-time test); `post_norm` adds one RMSNorm per
aux layer before `fc` and feeds the normalised hidden state back (arXiv 2605.09992); `gated` multiplies
the attention output by a sigmoid (arXiv 2505.06708), whose rows sit in `q_proj` after each head's own.
Parameters carry the published tensor names, so that the state dict is the checkpoint.

Layout of the unrolled attention: row s of chain step j stands at position s+j. It sees the step-0 keys
of positions <= s (true target features) and the keys of its own chain, steps 1..j.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from examples.tiny.train.parts import MLP, RMSNorm


@dataclass(frozen=True)
class DraftShape:
    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layer_ids: tuple[int, ...]
    post_norm: bool
    gated: bool = False
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0


class _Attention(nn.Module):
    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        width = 2 * shape.hidden_size
        self.head_dim = shape.head_dim
        self.groups = shape.num_heads // shape.num_kv_heads
        self.gated = shape.gated
        query_rows = shape.num_heads * shape.head_dim * (2 if shape.gated else 1)
        self.q_proj = nn.Linear(width, query_rows, bias=False)
        self.k_proj = nn.Linear(width, shape.num_kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(width, shape.num_kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.num_heads * shape.head_dim, shape.hidden_size, bias=False)
        inverse = shape.rope_theta ** -(torch.arange(0, self.head_dim, 2) / self.head_dim)
        self.register_buffer("inverse_frequency", inverse, persistent=False)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:  # [B, n, h*d] -> [B, h, n, d]
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _query_and_gate(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """[B, n, 2H] -> each [B, h, n, d]. Per head, the query's rows come first."""
        if not self.gated:
            return self._heads(self.q_proj(x)), None
        both = self.q_proj(x).unflatten(-1, (-1, 2 * self.head_dim)).transpose(1, 2)
        query, gate = both.chunk(2, dim=-1)
        return query, gate

    def _rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angle = positions[:, None].float() * self.inverse_frequency  # [n, d/2]
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        low, high = x.chunk(2, dim=-1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)

    def forward(
        self,
        x: torch.Tensor,  # [B, n, 2H]
        positions: torch.Tensor,  # [n]
        cache: list[tuple[torch.Tensor, torch.Tensor]],  # per chain step: k, v [B, h, n, d]
    ) -> torch.Tensor:
        query, gate = self._query_and_gate(x)
        query = self._rotate(query, positions)
        key = self._rotate(self._heads(self.k_proj(x)), positions)
        value = self._heads(self.v_proj(x))
        cache.append(
            (
                key.repeat_interleave(self.groups, dim=1),
                value.repeat_interleave(self.groups, dim=1),
            )
        )
        n = x.shape[1]
        first_key, first_value = cache[0]
        scores = query @ first_key.transpose(-1, -2) * self.head_dim**-0.5  # [B, h, n, n]
        future = torch.ones(n, n, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
        chain = [(query * k).sum(-1, keepdim=True) * self.head_dim**-0.5 for k, _ in cache[1:]]
        weights = torch.cat([scores, *chain], dim=-1).float().softmax(-1).to(value.dtype)
        mixed = weights[..., :n] @ first_value
        for step, (_, v) in enumerate(cache[1:]):
            mixed = mixed + weights[..., n + step, None] * v
        if gate is not None:
            mixed = mixed * gate.sigmoid()
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class _Layer(nn.Module):
    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        width, eps = shape.hidden_size, shape.rms_norm_eps
        self.input_layernorm = RMSNorm(width, eps)
        self.hidden_norm = RMSNorm(width, eps)
        self.post_attention_layernorm = RMSNorm(width, eps)
        self.self_attn = _Attention(shape)
        self.mlp = MLP(shape.hidden_size, shape.intermediate_size)


class DraftModel(nn.Module):
    """EAGLE-3 draft of one layer. Embeddings are the target's and not part of the state dict."""

    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        self.shape = shape
        count, width = len(shape.layer_ids), shape.hidden_size
        self.fc = nn.Linear(count * width, width, bias=False)
        if shape.post_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(width, shape.rms_norm_eps) for _ in range(count))
            for norm in self.fc_norm:
                # Apart from the start, so that the norms stay unlike and their order can be tested.
                nn.init.trunc_normal_(norm.weight, mean=1.0, std=0.5, a=0.1, b=1.9)
        self.midlayer = _Layer(shape)
        self.norm = RMSNorm(width, shape.rms_norm_eps)
        self.lm_head = nn.Linear(width, shape.draft_vocab_size, bias=False)

    def fuse(self, aux: list[torch.Tensor]) -> torch.Tensor:
        """Aux states in the order of `shape.layer_ids`, each [B, n, H] -> [B, n, H]."""
        if self.shape.post_norm:
            aux = [norm(state) for norm, state in zip(self.fc_norm, aux, strict=True)]
        return self.fc(torch.cat(aux, dim=-1))

    def unroll(
        self,
        aux: list[torch.Tensor],  # each [B, n, H], at positions 0..n-1
        embeddings: torch.Tensor,  # [B, S, H] of the window's tokens, S >= n + steps
        steps: int,
    ) -> list[torch.Tensor]:
        """Logits over the draft vocabulary, per chain step [B, n, Vd].

        Row s of step j is fed the token at s+j+1 and predicts the token at s+j+2.
        """
        layer = self.midlayer
        state = self.fuse(aux)
        n = state.shape[1]
        cache: list[tuple[torch.Tensor, torch.Tensor]] = []
        logits = []
        for step in range(steps):
            token = layer.input_layernorm(embeddings[:, step + 1 : step + 1 + n])
            x = torch.cat([token, layer.hidden_norm(state)], dim=-1)
            state = state + layer.self_attn(x, torch.arange(n) + step, cache)
            state = state + layer.mlp(layer.post_attention_layernorm(state))
            normed = self.norm(state)
            logits.append(self.lm_head(normed))
            if self.shape.post_norm:
                state = normed
        return logits
