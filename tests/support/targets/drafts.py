"""A draft for each tiny target, of a kind that is published for its family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from tests.support.checkpoints import HEAD_DIM, HEADS, HIDDEN, INTER, KV_HEADS, LAYERS, VOCAB
from tests.support.drafts import MASK_TOKEN, Draft, valid_draft, write
from tests.support.published import FIXTURES

# As published, but for the sizes.
_TINY = {
    "hidden_size": HIDDEN,
    "intermediate_size": INTER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "num_hidden_layers": 2,
    "layer_types": ["full_attention"] * 2,
    "max_position_embeddings": 512,
    "num_target_layers": LAYERS,
}


def write_draft(kind: str, num_aux: int, folder: Path) -> tuple[Path, Draft]:
    """kind: a family of drafts.py, or "dflash:" and a published draft of the fixtures."""
    draft = _dflash_like(kind) if ":" in kind else valid_draft(kind)
    torch.manual_seed(1)
    draft.tensors["fc.weight"] = (torch.randn(HIDDEN, num_aux * HIDDEN) / HIDDEN).bfloat16()
    if "fc_norm.0.weight" in draft.tensors:
        scales = {f"fc_norm.{k}.weight": 1 + 0.3 * torch.randn(HIDDEN) for k in range(num_aux)}
        draft.tensors |= {name: scale.bfloat16() for name, scale in scales.items()}
    return write(draft, folder), draft


def _dflash_like(kind: str) -> Draft:
    """The published config with tiny sizes. The one with biases has the target's KV heads, as published,
    and sinks, which are published for other targets."""
    slug = kind.partition(":")[2]
    published: dict[str, Any] = json.loads((FIXTURES / f"{slug}.json").read_text())
    draft = valid_draft("dflash")
    config: dict[str, Any] = published["config"] | _TINY
    config["dflash_config"] = config["dflash_config"] | {"mask_token_id": MASK_TOKEN}
    if config["attention_bias"]:
        config["rope_scaling"] |= {"original_max_position_embeddings": 16}
        config["dflash_config"]["attention_sink_bias"] = True
        config["num_key_value_heads"] = HEADS
        _add_biases_and_sinks(draft.tensors)
    return Draft(config, draft.tensors, "dflash", config["block_size"] - 1)


def _add_biases_and_sinks(tensors: dict[str, torch.Tensor]) -> None:
    torch.manual_seed(2)
    for layer in range(2):
        attention = f"layers.{layer}.self_attn"
        for name in "kv":
            rows = torch.randn(HEADS * HEAD_DIM, HIDDEN) * HIDDEN**-0.5
            tensors[f"{attention}.{name}_proj.weight"] = rows.bfloat16()
        for name in "qkvo":
            rows = tensors[f"{attention}.{name}_proj.weight"].shape[0]
            tensors[f"{attention}.{name}_proj.bias"] = (0.1 * torch.randn(rows)).bfloat16()
        tensors[f"{attention}.attention_sink_bias"] = torch.randn(HEADS).bfloat16()
