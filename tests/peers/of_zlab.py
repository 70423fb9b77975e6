"""DFlash drafts of any writer, read and drafted with by z-lab's own code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.peers.chains import Chains
from tests.peers.texts import TARGET, states, target


@torch.no_grad()
def draft(folder: Path, tokens: tuple[int, ...], verifier: str = TARGET) -> Chains:
    """A block behind every token but the first, as its generation loop drafts a request's first."""
    from dflash.model import DFlashDraftModel, _draft_value, _output_head, _raw_input_embeddings

    model: Any = DFlashDraftModel.from_pretrained(folder, dtype=torch.float32).eval()
    whole = target(verifier)
    inputs = states(tokens, [id_ + 1 for id_ in model.target_layer_ids], verifier)
    scale = float(_draft_value(model.config, "input_embedding_scale", 1.0))
    logits = []
    for anchor in range(1, len(tokens)):
        block = torch.full((1, model.block_size), model.mask_token_id)
        block[0, 0] = tokens[anchor]
        hidden = model(
            target_hidden=inputs[:, :anchor],
            noise_embedding=_raw_input_embeddings(whole, block, scale),
            position_ids=torch.arange(anchor + model.block_size)[None],
        )
        logits.append(model.compute_logits(hidden[0, 1:], _output_head(whole)))
    stack = torch.stack(logits)
    return Chains.of_logits(stack, torch.arange(stack.shape[-1]))
