# SPDX-License-Identifier: Apache-2.0
"""Keys and values of an EAGLE-3 draft of one layer, written without its attention.

[k, v] = W_kv [RMSNorm(E[next token]), RMSNorm(fuse(target's states))],  k = RoPE(k)

Of committed tokens they follow from the target's states and the token behind each; what the draft has
fed back to itself stands in rows of drafted tokens alone, which are overwritten. A second layer would
read what the first one's attention has made of all rows before.
"""

from __future__ import annotations

from typing import Any

import torch

from vllm_eagle_ext.drafters.deferred_context import ContextRows
from vllm_eagle_ext.drafters.sleeping_draft import SleepingDraft


class SleepingLayer(SleepingDraft):
    """Mixed in before an EAGLE-3 drafter on Llama or Qwen3 layers."""

    def fill_cache(self, rows: ContextRows) -> None:
        (layer,) = self.model.layers  # type: ignore[attr-defined]
        states = self.combine_hidden_states(rows.states)  # type: ignore[attr-defined]
        embeddings = self.plain_embeddings(rows.next_tokens)  # type: ignore[attr-defined]
        inputs = [layer.input_layernorm(embeddings), layer.hidden_norm(states)]
        key, value = _keys_and_values(layer.self_attn, torch.cat(inputs, dim=-1), rows.positions)
        attention, heads = layer.self_attn.attn, (-1, layer.self_attn.head_dim)
        attention.impl.do_kv_cache_update(
            attention,
            key.unflatten(-1, heads),
            value.unflatten(-1, heads),
            attention.kv_cache,
            rows.places,
        )


def _keys_and_values(
    attention: Any, inputs: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:  # inputs [T, 2 * H] -> each [T, kv heads * d]
    """As the layer's own forward; a gate stands between queries and keys."""
    qkv, _ = attention.qkv_proj(inputs)
    query = qkv[:, : attention.q_size].contiguous()
    key, value = qkv[:, -2 * attention.kv_size :].split(attention.kv_size, dim=-1)
    if hasattr(attention, "k_norm"):
        key = attention.k_norm(key.unflatten(-1, (-1, attention.head_dim))).flatten(-2)
    _, key = attention.rotary_emb(positions, query, key.contiguous())
    return key, value.contiguous()
