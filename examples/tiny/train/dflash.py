"""The trainable DFlash draft: many blocks of a sequence at once (z-lab's DFlash, arXiv 2602.06036).

A block is an anchor, the last known token at position s, and masks at s+1, s+2, ..; row j predicts the
token at s+j. Its rows see the target's states of positions 0..s-1, as keys and values made from one
fused feature per token, and the whole block. Parameters carry the published tensor names, so that the
state dict is the checkpoint; embeddings and output matrix are the target's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from examples.tiny.train.parts import MLP, RMSNorm


@dataclass(frozen=True)
class DFlashShape:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    target_layers: int
    output_ids: tuple[int, ...]  # layers of the target whose output is read
    mask_token_id: int
    block_size: int  # the anchor and block_size - 1 masks
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0

    @property
    def layer_ids(self) -> tuple[int, ...]:
        return tuple(i + 1 for i in self.output_ids)


@dataclass(frozen=True)
class _Layout:
    """Where the rows of A blocks of R rows stand, and what they see of S context rows."""

    context: torch.Tensor  # positions, [1, S]
    block: torch.Tensor  # positions, [B, A * R]
    visible: torch.Tensor  # bool [B, 1, A * R, S + A * R]


def layout(starts: torch.Tensor, length: int, block_size: int) -> _Layout:
    """starts [B, A]: the anchors' positions; length: S."""
    context = torch.arange(length)[None]
    block = (starts[..., None] + torch.arange(block_size)).flatten(1)
    first = starts.repeat_interleave(block_size, dim=1)
    owner = torch.arange(starts.shape[1]).repeat_interleave(block_size)
    same = (owner[:, None] == owner).expand(starts.shape[0], -1, -1)
    visible = torch.cat([context[:, None] < first[..., None], same], dim=-1)
    return _Layout(context, block, visible[:, None])


class _Attention(nn.Module):
    def __init__(self, shape: DFlashShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        kv_rows = shape.num_kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, shape.num_heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, kv_rows, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, kv_rows, bias=False)
        self.o_proj = nn.Linear(shape.num_heads * shape.head_dim, shape.hidden_size, bias=False)
        self.q_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)
        inverse = shape.rope_theta ** -(torch.arange(0, self.head_dim, 2) / self.head_dim)
        self.register_buffer("inverse_frequency", inverse, persistent=False)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:  # [B, n, h*d] -> [B, h, n, d]
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x [B, h, n, d], positions [B or 1, n]."""
        angle = positions[:, None, :, None].float() * self.inverse_frequency
        cos, sin = angle.cos(), angle.sin()
        low, high = x.chunk(2, dim=-1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)

    def forward(
        self,
        rows: torch.Tensor,  # [B, A * R, H]
        context: torch.Tensor,  # [B, S, H]
        at: _Layout,
    ) -> torch.Tensor:  # [B, A * R, H]
        query = self._rotate(self.q_norm(self._heads(self.q_proj(rows))), at.block)
        keys, values = [], []
        for x, positions in ((context, at.context), (rows, at.block)):
            keys.append(self._rotate(self.k_norm(self._heads(self.k_proj(x))), positions))
            values.append(self._heads(self.v_proj(x)))
        value = torch.cat(values, dim=2)
        mixed = F.scaled_dot_product_attention(
            query.to(value.dtype),
            torch.cat(keys, dim=2).to(value.dtype),
            value,
            attn_mask=at.visible,
            enable_gqa=True,
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class _Layer(nn.Module):
    def __init__(self, shape: DFlashShape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = _Attention(shape)
        self.mlp = MLP(shape.hidden_size, shape.intermediate_size)

    def forward(self, x: torch.Tensor, context: torch.Tensor, at: _Layout) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, at)
        return x + self.mlp(self.post_attention_layernorm(x))


class DFlashModel(nn.Module):
    def __init__(self, shape: DFlashShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.hidden_size
        self.fc = nn.Linear(len(shape.output_ids) * width, width, bias=False)
        self.hidden_norm = RMSNorm(width, shape.rms_norm_eps)
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.num_layers))
        self.norm = RMSNorm(width, shape.rms_norm_eps)

    def forward(
        self,
        states: torch.Tensor,  # [B, S, ids * H], the target's, in the order of `output_ids`
        anchors: torch.Tensor,  # [B, A, H], embedded
        mask: torch.Tensor,  # [H], embedded
        starts: torch.Tensor,  # [B, A], positions of the anchors
    ) -> torch.Tensor:
        """[B, A, R - 1, H], final-normed: what the mask rows predict, before the output matrix."""
        size = self.shape.block_size
        masks = mask.expand(*anchors.shape[:2], size - 1, -1)
        x = torch.cat([anchors[:, :, None], masks], dim=2).flatten(1, 2)
        context = self.hidden_norm(self.fc(states))
        at = layout(starts, states.shape[1], size)
        for layer in self.layers:
            x = layer(x, context, at)
        return self.norm(x).unflatten(1, (-1, size))[:, :, 1:]
