# SPDX-License-Identifier: Apache-2.0
"""A published draft, as it lies in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from vllm_eagle_ext.checkpoint.names import canonical_name


def read_config(folder: Path) -> dict[str, Any]:
    """The layers' block of a speculators config is laid under its own keys."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return {**config.get("transformer_layer_config", {}), **config}


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Of all files, by canonical name."""
    files = sorted(folder.glob("*.safetensors"))
    return {canonical_name(name): tensor for file in files for name, tensor in load_file(file).items()}
