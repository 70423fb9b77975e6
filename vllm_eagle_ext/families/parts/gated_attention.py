# SPDX-License-Identifier: Apache-2.0
"""Gated attention: o_proj(Attn(q, k, v) * sigmoid(gate)); the gate gets neither norm nor rope.

At run time the gate's rows stand after the rank's queries in one projection, so that query and gate
are views of its output: [T, q | gate | k | v]. Whatever the published layout is, it becomes that one
while the weights are loaded.

Maths: Gated Attention for Large Language Models, arXiv 2505.06708.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.linear import QKVParallelLinear
from vllm.model_executor.models.llama import LlamaAttention
from vllm.model_executor.models.qwen3 import Qwen3Attention


def gated(output: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:  # each [T, heads * d]
    """Multiply in the one temporary: changing `output` in place would cost a compiled graph a copy of
    it."""
    return gate.sigmoid().mul_(output)


class GatedLlamaAttention(LlamaAttention):
    """Differences from the parent: the projection also yields a gate, which scales the output."""

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        qkv, _ = self.qkv_proj(hidden_states)
        q, gate, k, v = qkv.split([self.q_size, self.q_size, self.kv_size, self.kv_size], dim=-1)
        q, k = self.rotary_emb(positions, q, k)
        output, _ = self.o_proj(gated(self.attn(q, k, v), gate))
        return output


class GatedQwen3Attention(Qwen3Attention):
    """Differences from the parent: as above; queries and keys are normed head by head before rope."""

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        qkv, _ = self.qkv_proj(hidden_states)
        q, gate, k, v = qkv.split([self.q_size, self.q_size, self.kv_size, self.kv_size], dim=-1)
        q = self.q_norm(q.unflatten(-1, (-1, self.head_dim))).flatten(-2)
        k = self.k_norm(k.unflatten(-1, (-1, self.head_dim))).flatten(-2)
        q, k = self.rotary_emb(positions, q, k)
        output, _ = self.o_proj(gated(self.attn(q, k, v), gate))
        return output


_GATED = {LlamaAttention: GatedLlamaAttention, Qwen3Attention: GatedQwen3Attention}


def add_gate(attention: Any) -> None:
    """Turn the attention of one of vLLM's drafter layers into its gated kind, before weights are loaded.

    vLLM builds a drafter's layers without a hook for the attention's class, and an `Attention` cannot
    be built twice under one name: so the projection is replaced and the class changed.
    """
    plain = attention.qkv_proj
    attention.qkv_proj = QKVParallelLinear(
        plain.hidden_size,
        attention.head_dim,
        2 * attention.total_num_heads,
        attention.total_num_kv_heads,
        bias=plain.bias is not None,
        quant_config=plain.quant_config,
        prefix=plain.prefix,
    )
    attention.__class__ = _GATED[type(attention)]
