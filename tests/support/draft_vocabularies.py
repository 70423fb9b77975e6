"""Drafts that read a whole head, and files of token ids for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from tests.support.drafts import Draft, valid_draft
from tests.support.engine import TINY

REDUCING = ("lm_head.weight", "d2t", "t2d")


def whole(family: str, seed: int = 0) -> Draft:
    """A valid draft with a whole vocabulary; with the target's head, unless it is the MLA draft."""
    draft = valid_draft(family, seed)
    if "d2t" in draft.tensors:
        for name in REDUCING:
            draft.tensors.pop(name, None)
        for block in (draft.config, draft.config.get("transformer_layer_config", {})):
            block.pop("draft_vocab_size", None)
        if draft.config.get("speculators_model_type"):
            draft.config["draft_vocab_size"] = None
    return draft


def write_ids(file: Path, ids: Sequence[int]) -> str:
    file.write_text(json.dumps(list(ids)))
    return str(file)


def native_without_a_head(folder: Path, **changes: Any) -> Path:
    """The trained native draft without its own head: it reads the target's."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = load_file(TINY / "native/model.safetensors")
    config = json.loads((TINY / "native/config.json").read_text()) | changes
    config.pop("draft_vocab_size", None)
    for name in REDUCING:
        tensors.pop(name, None)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder
