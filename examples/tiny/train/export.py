"""Writes a trained draft in its published format: config.json and safetensors, no embeddings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from .dflash import DFlashModel, DFlashShape
from .draft import DraftModel, DraftShape


def draft_config(shape: DraftShape, max_position_embeddings: int) -> dict[str, Any]:
    """Keys as in the published files. A native head names no layers, a post-norm head nests the
    ids of the layers whose *output* it reads (the layer that takes it, less one)."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "draft_vocab_size": shape.draft_vocab_size,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": max_position_embeddings,
        "mlp_bias": False,
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": 1,
        "num_key_value_heads": shape.num_kv_heads,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": shape.vocab_size,
    }
    if shape.gated:
        config["attn_output_gate"] = True
        config["gate_layout"] = "interleaved"
    if shape.post_norm:
        config["eagle_config"] = {
            "eagle_aux_hidden_state_layer_ids": [b - 1 for b in shape.layer_ids],
            "use_aux_hidden_state": True,
        }
        config["fc_norm"] = True
        config["norm_output"] = True
    return config


def vocabulary_map(kept: torch.Tensor, vocab_size: int) -> dict[str, torch.Tensor]:
    """`d2t` holds offsets, target id = draft id + d2t[draft id]; `t2d` marks the kept target ids."""
    t2d = torch.zeros(vocab_size, dtype=torch.bool)
    t2d[kept] = True
    return {"d2t": kept - torch.arange(kept.numel()), "t2d": t2d}


def save_draft(
    draft: DraftModel, kept: torch.Tensor, directory: Path, *, max_position_embeddings: int
) -> None:
    shape = draft.shape
    tensors = bf16_tensors(draft)
    if shape.draft_vocab_size < shape.vocab_size:
        tensors |= vocabulary_map(kept, shape.vocab_size)
    write_checkpoint(tensors, draft_config(shape, max_position_embeddings), directory)


def dflash_config(shape: DFlashShape, max_position_embeddings: int) -> dict[str, Any]:
    """Keys as z-lab publishes them."""
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "block_size": shape.block_size,
        "bos_token_id": 0,
        "dflash_config": {
            "mask_token_id": shape.mask_token_id,
            "target_layer_ids": list(shape.output_ids),
        },
        "dtype": "bfloat16",
        "eos_token_id": 0,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "layer_types": ["full_attention"] * shape.num_layers,
        "max_position_embeddings": max_position_embeddings,
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_kv_heads,
        "num_target_layers": shape.target_layers,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": shape.vocab_size,
    }


def save_dflash(draft: DFlashModel, directory: Path, *, max_position_embeddings: int) -> None:
    config = dflash_config(draft.shape, max_position_embeddings)
    write_checkpoint(bf16_tensors(draft), config, directory)


def bf16_tensors(draft: nn.Module) -> dict[str, torch.Tensor]:
    return {name: t.bfloat16().contiguous() for name, t in draft.state_dict().items()}


def write_checkpoint(tensors: dict[str, torch.Tensor], config: dict[str, Any], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
