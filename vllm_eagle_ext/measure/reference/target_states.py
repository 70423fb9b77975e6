# SPDX-License-Identifier: Apache-2.0
"""The target through Hugging Face: its residual stream at the input of any layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedModel,
)


def load_target(folder: Path | str) -> PreTrainedModel:
    """Load the bf16 weights in fp32. Some models with images have no class for only text."""
    config = AutoConfig.from_pretrained(folder)
    has_text_class = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    auto = AutoModelForCausalLM if has_text_class else AutoModelForImageTextToText
    return auto.from_pretrained(folder, dtype=torch.float32).eval()


def layers_of(model: PreTrainedModel) -> Sequence[torch.nn.Module]:
    """Return the text model's layers, where there are other models next to it."""
    layers: Sequence[torch.nn.Module] = getattr(model.model, "language_model", model.model).layers
    return layers


@torch.inference_mode()
def residual_stream(
    model: PreTrainedModel, tokens: Sequence[int], layer_ids: Sequence[int]
) -> list[torch.Tensor]:
    """Return the target's states per aux layer, [T, Ht].

    Layer id N stands for the last layer's output, before the final norm.
    """
    layers = layers_of(model)
    seen: dict[int, torch.Tensor] = {}

    def entering(layer_id: int) -> Callable[..., None]:
        def hook(_module: Any, args: Any, kwargs: Any) -> None:
            seen[layer_id] = (args[0] if args else kwargs["hidden_states"])[0]

        return hook

    def leaving(_module: Any, _args: Any, output: Any) -> None:
        seen[len(layers)] = (output[0] if isinstance(output, tuple) else output)[0]

    handles = [
        layer.register_forward_pre_hook(entering(b), with_kwargs=True) for b, layer in enumerate(layers)
    ]
    handles.append(layers[-1].register_forward_hook(leaving))
    try:
        model(torch.tensor([list(tokens)]), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return [seen[b].view(len(tokens), -1) for b in layer_ids]
