"""Seeded tiny checkpoints with random weights, for everything that needs no trained draft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTER = 64, 2, 1, 32, 96
VOCAB, DRAFT_VOCAB, LAYERS = 128, 96, 8


def write_target(folder: Path, **overrides: Any) -> Path:
    """A Llama of LAYERS layers, config only: enough for every check that comes before the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config | overrides))
    return folder


def draft_config(*, num_aux: int, post_norm: bool, **overrides: Any) -> dict[str, Any]:
    """As published: ids nested in eagle_config name layer outputs, the input of layer id + 1."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "torch_dtype": "bfloat16",
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(range(1, num_aux + 1)),
            "use_aux_hidden_state": True,
        },
    }
    if post_norm:
        config |= {"fc_norm": True, "norm_output": True}
    return config | overrides


def draft_tensors(
    *, num_aux: int, post_norm: bool, dtype: torch.dtype = torch.bfloat16, seed: int = 0
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) * columns**-0.5).to(dtype)

    def scale() -> torch.Tensor:
        return (1 + 0.3 * torch.randn(HIDDEN, generator=generator)).to(dtype)

    kept = torch.randperm(VOCAB, generator=generator)[:DRAFT_VOCAB].sort().values
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[kept] = True
    tensors = {
        "fc.weight": matrix(HIDDEN, num_aux * HIDDEN),
        "norm.weight": scale(),
        "lm_head.weight": matrix(DRAFT_VOCAB, HIDDEN),
        "d2t": kept - torch.arange(DRAFT_VOCAB),
        "t2d": t2d,
        "midlayer.hidden_norm.weight": scale(),
        "midlayer.input_layernorm.weight": scale(),
        "midlayer.post_attention_layernorm.weight": scale(),
        "midlayer.self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD_DIM),
        "midlayer.mlp.gate_proj.weight": matrix(INTER, HIDDEN),
        "midlayer.mlp.up_proj.weight": matrix(INTER, HIDDEN),
        "midlayer.mlp.down_proj.weight": matrix(HIDDEN, INTER),
    }
    if post_norm:
        tensors |= {f"fc_norm.{k}.weight": scale() for k in range(num_aux)}
    return tensors


def write_draft(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor] | None) -> Path:
    """Pass None to leave the weights out."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if tensors is not None:
        save_file(tensors, folder / "model.safetensors")
    return folder


def tiny_draft(
    folder: Path,
    *,
    num_aux: int = 3,
    post_norm: bool = True,
    dtype: torch.dtype = torch.bfloat16,
    **overrides: Any,
) -> Path:
    return write_draft(
        folder,
        draft_config(num_aux=num_aux, post_norm=post_norm, **overrides),
        draft_tensors(num_aux=num_aux, post_norm=post_norm, dtype=dtype),
    )
