# SPDX-License-Identifier: Apache-2.0
"""What a draft checkpoint says: config.json and safetensors headers, read without vLLM or torch."""

from __future__ import annotations

from vllm_eagle_ext.checkpoint.aux_layers import AuxLayers, resolve_aux_layers
from vllm_eagle_ext.checkpoint.files import DraftFiles, read_draft_files
from vllm_eagle_ext.checkpoint.spec import DraftSpec, TargetFacts, read_draft_spec

__all__ = [
    "AuxLayers",
    "DraftFiles",
    "DraftSpec",
    "TargetFacts",
    "read_draft_files",
    "read_draft_spec",
    "resolve_aux_layers",
]
