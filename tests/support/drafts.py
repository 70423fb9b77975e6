"""A small valid draft of every family, in memory, for tests that break one thing at a time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tests.support.checkpoints import HIDDEN, LAYERS, VOCAB, write_draft
from tests.support.draft_families import (
    BLOCK,
    BUILDERS,
    LATENT,
    LAYER,
    MASK_TOKEN,
    NOPE,
    ROTARY,
    VALUE,
    Draft,
    as_specforge,
)
from tests.support.second_heads import SECOND_HEADS
from vllm_eagle_ext.draft import Inspection, TargetFacts, inspect_draft, read_draft_files
from vllm_eagle_ext.draft.spec import DraftRequest
from vllm_eagle_ext.options import Options

__all__ = [
    "BLOCK",
    "FAMILIES",
    "LATENT",
    "LAYER",
    "MASK_TOKEN",
    "NOPE",
    "OURS",
    "ROTARY",
    "TARGET",
    "VALUE",
    "VLLMS",
    "Draft",
    "as_specforge",
    "inspect",
    "valid_draft",
    "write",
]

_BUILDERS = {**BUILDERS, **SECOND_HEADS}

TARGET: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
}


def valid_draft(family: str, seed: int = 0) -> Draft:
    """A fresh copy."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return _BUILDERS[family](seed)


def write(draft: Draft, folder: Path) -> Path:
    """One without tensors gets an empty .bin file instead."""
    if draft.tensors:
        return write_draft(folder, draft.config, draft.tensors)
    write_draft(folder, draft.config, None)
    (folder / "pytorch_model.bin").touch()
    return folder


def inspect(
    draft: Draft,
    folder: Path,
    *,
    target: Mapping[str, Any] | None = None,
    target_folder: Path | None = None,
    engine: Mapping[str, Any] | None = None,
    **options: Any,
) -> Inspection:
    """Write the draft into `folder` and look at it.

    Args:
        target, engine: what differs from TARGET, and from an engine that suits the draft.
        options: of this package.
    """
    asked = {"method": draft.method, "k": draft.k, "max_model_len": 512} | dict(engine or {})
    facts = TargetFacts.from_config({**TARGET, **(target or {})}, target_folder)
    described = DraftRequest(options=Options(**options), **asked)
    return inspect_draft(read_draft_files(str(write(draft, folder))), facts, described)


FAMILIES = tuple(_BUILDERS)
VLLMS = tuple(SECOND_HEADS)  # served by vLLM's own classes, on V2 alone
OURS = tuple(family for family in FAMILIES if family not in VLLMS)
