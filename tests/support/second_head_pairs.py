"""DFlash2 and DSpark drafts of the trained hybrid target: its DFlash draft with a random second head."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from safetensors.torch import load_file

from tests.support.draft_families import Draft, matrix
from tests.support.engine import TINY
from tests.support.second_heads import GROUP, MARKOV, RANK, TAPS

TRAINED = TINY / "dflash"
_SMALL = 0.05


def on_the_trained_draft(family: str) -> Draft:
    """The trained draft's weights; its own tokens change where the second head says so."""
    config = json.loads((TRAINED / "config.json").read_text())
    tensors, block = load_file(TRAINED / "model.safetensors"), config["block_size"]
    torch.manual_seed(1)
    if family == "dflash2":
        config["architectures"] = ["DFlash2DraftModel"]
        config["dflash_config"] |= {
            "conv_kernel_size": TAPS, "conv_group_size": GROUP, "selector_rank": RANK,
            "selector_top_k": 4,
        }  # fmt: skip
        return Draft(config, tensors | _dflash2_head(config), "dflash", block - 1)
    config["architectures"] = ["DSparkDraftModel"]
    config["dflash_config"] |= {"projector_type": "dspark", **MARKOV}
    config["sample_from_anchor"] = False  # as the trained draft
    return Draft(config, tensors | _dspark_head(config), "dspark", block - 1)


def _dflash2_head(config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Convolutions near the identity, and a selector that turns near-ties."""
    width, tensors = config["hidden_size"], {}
    for layer in range(config["num_hidden_layers"]):
        for part in ("attention_conv", "mlp_conv"):
            place = f"layers.{layer}.{part}"
            base = _SMALL * torch.randn(2, TAPS, width)
            base[:, 0] += 1
            tensors[f"{place}.base_kernel"] = base
            tensors[f"{place}.kernel_projection.weight"] = _SMALL * matrix(
                2 * TAPS * width // GROUP, width
            )
    for name in ("predecessor", "successor"):
        tensors[f"candidate_selector.{name}_codebook"] = 0.3 * torch.randn(config["vocab_size"], RANK)
    tensors["candidate_selector.hidden_projection.weight"] = matrix(RANK, width)
    return {name: tensor.bfloat16() for name, tensor in tensors.items()}


def _dspark_head(config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    tensors = {
        "markov_head.markov_w1.weight": torch.randn(config["vocab_size"], RANK),
        "markov_head.markov_w2.weight": 0.3 * torch.randn(config["vocab_size"], RANK),
        "confidence_head.proj.weight": matrix(1, config["hidden_size"] + RANK),
        "confidence_head.proj.bias": torch.zeros(1),
    }
    return {name: tensor.bfloat16() for name, tensor in tensors.items()}


def with_another_second_head(draft: Draft) -> Draft:
    """The same draft but for the tensors of its second head, for a negative control."""
    parts = ("_conv.", "candidate_selector", "markov_head")
    tensors = {
        name: tensor.flip(0).contiguous() if any(part in name for part in parts) else tensor
        for name, tensor in draft.tensors.items()
    }
    return replace(draft, tensors=tensors)
