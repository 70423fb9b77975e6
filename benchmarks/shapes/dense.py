# SPDX-License-Identifier: Apache-2.0
"""A Llama target, and EAGLE-3 drafts of it: native, post-norm with five aux layers, gated."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch

Shapes = dict[str, tuple[int, ...]]
_BLOCK = 2**20 + 1  # odd, so that rows differ


@dataclass(frozen=True)
class Sizes:
    """What every target has."""

    width: int
    inner: int  # of the MLP
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int


@dataclass(frozen=True)
class Dense(Sizes):
    draft_vocabulary: int
    positions: int
    outputs: tuple[int, ...]  # layers whose output a draft with five aux layers reads

    def _common(self) -> dict[str, Any]:
        return {
            "attention_bias": False, "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "silu",
            "hidden_size": self.width, "intermediate_size": self.inner, "mlp_bias": False,
            "max_position_embeddings": self.positions, "model_type": "llama",
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
            "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": self.vocabulary,
        }  # fmt: skip

    def target(self) -> dict[str, Any]:
        return {
            **self._common(),
            "architectures": ["LlamaForCausalLM"],
            "num_hidden_layers": self.layers,
        }

    def draft(self, *, post_norm: bool = False, gated: bool = False) -> dict[str, Any]:
        """Keys as in the published files."""
        config: dict[str, Any] = {
            **self._common(),
            "architectures": ["LlamaForCausalLMEagle3"],
            "num_hidden_layers": 1,
            "draft_vocab_size": self.draft_vocabulary,
        }
        if post_norm:
            ids = {"eagle_aux_hidden_state_layer_ids": list(self.outputs), "use_aux_hidden_state": True}
            config |= {"eagle_config": ids, "fc_norm": True, "norm_output": True}
        if gated:
            config |= {"attn_output_gate": True, "gate_layout": "interleaved"}
        return config

    def tensors(self, *, post_norm: bool = False, gated: bool = False) -> dict[str, torch.Tensor]:
        width, inner, aux = self.width, self.inner, len(self.outputs) if post_norm else 3
        rows, kv_rows = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: Shapes = {
            "fc.weight": (width, aux * width),
            "midlayer.self_attn.q_proj.weight": (rows * (2 if gated else 1), 2 * width),
            "midlayer.self_attn.k_proj.weight": (kv_rows, 2 * width),
            "midlayer.self_attn.v_proj.weight": (kv_rows, 2 * width),
            "midlayer.self_attn.o_proj.weight": (width, rows),
            "midlayer.mlp.gate_proj.weight": (inner, width),
            "midlayer.mlp.up_proj.weight": (inner, width),
            "midlayer.mlp.down_proj.weight": (width, inner),
            "midlayer.hidden_norm.weight": (width,),
            "midlayer.input_layernorm.weight": (width,),
            "midlayer.post_attention_layernorm.weight": (width,),
            "norm.weight": (width,),
            "lm_head.weight": (self.draft_vocabulary, width),
        }
        if post_norm:
            shapes |= {f"fc_norm.{index}.weight": (width,) for index in range(aux)}
        return random_weights(shapes) | self._vocabulary_map()

    def _vocabulary_map(self) -> dict[str, torch.Tensor]:
        """Draft ids spread evenly over the target's; `d2t` holds offsets."""
        own = torch.arange(self.draft_vocabulary)
        kept = own * (self.vocabulary // self.draft_vocabulary)
        mask = torch.zeros(self.vocabulary, dtype=torch.bool)
        mask[kept] = True
        return {"d2t": kept - own, "t2d": mask}


def random_weights(shapes: Shapes) -> dict[str, torch.Tensor]:
    """Norms near 1, all others small: states stay finite over any number of layers.

    One block of numbers again and again: drawing all of a draft's would take minutes.
    """
    torch.manual_seed(0)
    block = torch.randn(_BLOCK).mul_(0.02).bfloat16()
    tensors = {}
    for name, shape in shapes.items():
        size = prod(shape)
        values = block.repeat(-(-size // _BLOCK))[:size].view(shape)
        tensors[name] = values + 1 if len(shape) == 1 else values
    return tensors


LLAMA_8B = {
    "real": Dense(
        width=4096, inner=14336, layers=32, heads=32, kv_heads=8, head_dim=128, vocabulary=128256,
        draft_vocabulary=32000, positions=131072, outputs=(1, 8, 15, 22, 28),
    ),
    # Qwen3-0.6B's widths, fewer layers and a small vocabulary: three engines fit 16 GiB.
    "cpu": Dense(
        width=1024, inner=3072, layers=10, heads=16, kv_heads=8, head_dim=128, vocabulary=32000,
        draft_vocabulary=8000, positions=16384, outputs=(1, 3, 5, 7, 8),
    ),
    "tiny": Dense(
        width=192, inner=384, layers=12, heads=6, kv_heads=2, head_dim=32, vocabulary=1536,
        draft_vocabulary=1024, positions=2048, outputs=(1, 3, 5, 7, 9),
    ),
}  # fmt: skip
