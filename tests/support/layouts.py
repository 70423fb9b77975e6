"""Other ways in which a draft lies on a disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.support.checkpoints import draft_config, draft_tensors, write_draft

INDEX = "model.safetensors.index.json"
Shards = dict[str, dict[str, torch.Tensor]]  # file -> its tensors


def write_shards(folder: Path, shards: Shards, index: Mapping[str, str] | None = None) -> Path:
    """`index` maps tensors to shards; None: as they lie."""
    write_draft(folder, draft_config(num_aux=3, post_norm=True), None)
    for name, tensors in shards.items():
        save_file(tensors, folder / name)
    if index is None:
        index = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def halves() -> Shards:
    tensors = list(draft_tensors(num_aux=3, post_norm=True).items())
    return {"a.safetensors": dict(tensors[:9]), "b.safetensors": dict(tensors[9:])}


def in_hub_cache(cache: Path, draft: Path) -> Path:
    """As the hub's library lays it out; returns the folder of the snapshot."""
    commit = "0" * 40
    repository = cache / "models--owner--draft"
    snapshot = repository / "snapshots" / commit
    shutil.copytree(draft, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    return snapshot
