# SPDX-License-Identifier: Apache-2.0
"""A target of gated delta nets with attention in every fourth layer, and a DFlash draft of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.shapes.dense import Shapes, Sizes, random_weights


@dataclass(frozen=True)
class Hybrid(Sizes):
    key_heads: int  # of a delta net
    value_heads: int
    state_dim: int  # of keys and values
    sections: tuple[int, int, int]  # of the rotary positions
    positions: int
    draft_layers: int
    draft_heads: int
    draft_kv_heads: int
    draft_head_dim: int
    outputs: tuple[int, ...]  # layers whose output the draft reads
    block: int = 16  # tokens of a block: K + 1

    def target(self) -> dict[str, Any]:
        """Give only the language model: a tower for images decodes nothing."""
        return {
            "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text",
            "attention_bias": False, "attn_output_gate": True, "bos_token_id": 0, "eos_token_id": 0,
            "dtype": "bfloat16", "hidden_act": "silu", "hidden_size": self.width,
            "intermediate_size": self.inner, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim, "vocab_size": self.vocabulary, "rms_norm_eps": 1e-6,
            "layer_types": [
                "full_attention" if layer % 4 == 3 else "linear_attention"
                for layer in range(self.layers)
            ],
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": self.state_dim,
            "linear_value_head_dim": self.state_dim, "linear_num_key_heads": self.key_heads,
            "linear_num_value_heads": self.value_heads, "mamba_ssm_dtype": "float32",
            "max_position_embeddings": self.positions, "partial_rotary_factor": 0.25,
            "rope_parameters": {
                "mrope_interleaved": True, "mrope_section": list(self.sections),
                "partial_rotary_factor": 0.25, "rope_theta": 1e7, "rope_type": "default",
            },
            "tie_word_embeddings": False,
        }  # fmt: skip

    def draft(self) -> dict[str, Any]:
        return {
            "architectures": ["DFlashDraftModel"], "model_type": "qwen3",
            "attention_bias": False, "block_size": self.block, "bos_token_id": 0, "eos_token_id": 0,
            "dflash_config": {
                "mask_token_id": self.vocabulary - 1, "target_layer_ids": list(self.outputs),
            },
            "dtype": "bfloat16", "head_dim": self.draft_head_dim, "hidden_act": "silu",
            "hidden_size": self.width, "intermediate_size": self.inner,
            "layer_types": ["full_attention"] * self.draft_layers,
            "max_position_embeddings": self.positions, "num_attention_heads": self.draft_heads,
            "num_hidden_layers": self.draft_layers, "num_key_value_heads": self.draft_kv_heads,
            "num_target_layers": self.layers, "rms_norm_eps": 1e-6, "rope_scaling": None,
            "rope_theta": 1e7, "sliding_window": None, "use_sliding_window": False,
            "tie_word_embeddings": False, "vocab_size": self.vocabulary,
        }  # fmt: skip

    def tensors(self) -> dict[str, torch.Tensor]:
        """Embeddings and head are shared with the target."""
        width = self.width
        shapes: Shapes = {
            "fc.weight": (width, len(self.outputs) * width),
            "hidden_norm.weight": (width,),
            "norm.weight": (width,),
        }
        for layer in range(self.draft_layers):
            shapes |= {f"layers.{layer}.{name}": shape for name, shape in self._layer().items()}
        return random_weights(shapes)

    def _layer(self) -> Shapes:
        width, inner, dim = self.width, self.inner, self.draft_head_dim
        rows, kv_rows = self.draft_heads * dim, self.draft_kv_heads * dim
        return {
            "input_layernorm.weight": (width,),
            "post_attention_layernorm.weight": (width,),
            "self_attn.q_proj.weight": (rows, width),
            "self_attn.k_proj.weight": (kv_rows, width),
            "self_attn.v_proj.weight": (kv_rows, width),
            "self_attn.o_proj.weight": (width, rows),
            "self_attn.q_norm.weight": (dim,),
            "self_attn.k_norm.weight": (dim,),
            "mlp.gate_proj.weight": (inner, width),
            "mlp.up_proj.weight": (inner, width),
            "mlp.down_proj.weight": (width, inner),
        }


# A quarter of its 64 layers, so that many requests fit with a page of state per row too.
QWEN_27B = {
    "real": Hybrid(
        width=5120, inner=17408, layers=16, heads=24, kv_heads=4, head_dim=256, vocabulary=248320,
        key_heads=16, value_heads=48, state_dim=128, sections=(11, 11, 10), positions=262144,
        draft_layers=5, draft_heads=32, draft_kv_heads=8, draft_head_dim=128,
        outputs=(1, 4, 7, 10, 13),
    ),
    "tiny": Hybrid(
        width=192, inner=448, layers=8, heads=4, kv_heads=2, head_dim=64, vocabulary=1600,
        key_heads=2, value_heads=4, state_dim=64, sections=(3, 3, 2), positions=2048,
        draft_layers=2, draft_heads=4, draft_kv_heads=2, draft_head_dim=64,
        outputs=(0, 1, 3, 5, 6),
    ),
}  # fmt: skip
