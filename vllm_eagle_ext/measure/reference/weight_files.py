# SPDX-License-Identifier: Apache-2.0
"""A published draft, as it lies in its folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from vllm_eagle_ext.draft.tensors import canonical_name


def read_draft_config(folder: Path) -> dict[str, Any]:
    """Read config.json; the layers' block of a speculators config is laid under its own keys."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return {**config.get("transformer_layer_config", {}), **config}


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of all files, by canonical name."""
    files = sorted(folder.glob("*.safetensors"))
    return {canonical_name(name): tensor for file in files for name, tensor in load_file(file).items()}


def under(tensors: Mapping[str, torch.Tensor], prefix: str) -> Mapping[str, torch.Tensor]:
    """View the tensors of a module, by their names in it."""
    return _Under(tensors, prefix)


class _Under(Mapping[str, torch.Tensor]):
    def __init__(self, tensors: Mapping[str, torch.Tensor], prefix: str) -> None:
        self._tensors, self._prefix = tensors, prefix

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[self._prefix + name]

    def __contains__(self, name: object) -> bool:
        return f"{self._prefix}{name}" in self._tensors

    def __iter__(self) -> Iterator[str]:
        found = (name for name in self._tensors if name.startswith(self._prefix))
        return (name.removeprefix(self._prefix) for name in found)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Recorded(Mapping[str, torch.Tensor]):
    """The same tensors; `read` has the names of those that were looked up."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self._tensors[name]
        self.read.add(name)
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
