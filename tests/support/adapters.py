"""LoRA adapters with random weights for the tiny target."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

RANK = 4


def write_hybrid_adapter(folder: Path, target: Path, *, seed: int, scale: float) -> Path:
    """On projections of attention and of gated delta nets, by the shapes of the target's files."""
    modules = ("q_proj", "v_proj", "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")
    generator, tensors = torch.Generator().manual_seed(seed), {}
    for file in sorted(target.glob("*.safetensors")):
        for name, weight in load_file(file).items():
            place = name.removesuffix(".weight")
            if not place.endswith(modules) or "layers." not in place:
                continue
            rows, columns = weight.shape
            for part, shape in (("A", (RANK, columns)), ("B", (rows, RANK))):
                factor = torch.randn(*shape, generator=generator) * scale
                tensors[f"base_model.model.{place}.lora_{part}.weight"] = factor.bfloat16()
    return _save(folder, target, tensors, modules)


def write_adapter(
    folder: Path, target: Path, *, seed: int, scale: float, modules: tuple[str, ...]
) -> Path:
    """modules: names of projections of every layer, and "embed_tokens"."""
    config = AutoConfig.from_pretrained(target)
    head_dim = config.head_dim
    rows = {
        "q_proj": config.num_attention_heads * head_dim,
        "v_proj": config.num_key_value_heads * head_dim,
    }
    generator = torch.Generator().manual_seed(seed)
    tensors = {}

    def pair(name: str, a: tuple[int, int], b: tuple[int, int], suffix: str) -> None:
        for part, shape in (("A", a), ("B", b)):
            weight = torch.randn(*shape, generator=generator) * scale
            tensors[f"base_model.model.model.{name}.lora_{suffix}{part}"] = weight.bfloat16()

    for module in modules:
        if module == "embed_tokens":
            pair(module, (RANK, config.vocab_size), (config.hidden_size, RANK), "embedding_")
            continue
        for layer in range(config.num_hidden_layers):
            name = f"layers.{layer}.self_attn.{module}"
            pair(name, (RANK, config.hidden_size), (rows[module], RANK), "")
    tensors = {
        (name if "embedding" in name else f"{name}.weight"): tensor for name, tensor in tensors.items()
    }
    return _save(folder, target, tensors, modules)


def _save(
    folder: Path, target: Path, tensors: dict[str, torch.Tensor], modules: tuple[str, ...]
) -> Path:
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    adapter = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": list(modules),
        "bias": "none",
        "base_model_name_or_path": str(target),
    }
    (folder / "adapter_config.json").write_text(json.dumps(adapter))
    return folder
