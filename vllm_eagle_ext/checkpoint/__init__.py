# SPDX-License-Identifier: Apache-2.0
"""What a draft checkpoint says: config.json and safetensors headers, read without vLLM or torch."""

from __future__ import annotations

from vllm_eagle_ext.checkpoint.case import Case
from vllm_eagle_ext.checkpoint.draft_files import DraftFiles, read_config, read_draft_files
from vllm_eagle_ext.checkpoint.findings import Finding, Severity
from vllm_eagle_ext.checkpoint.inspection import Inspection, inspect_draft
from vllm_eagle_ext.checkpoint.spec import DraftSpec
from vllm_eagle_ext.checkpoint.target_facts import TargetFacts

__all__ = [
    "Case",
    "DraftFiles",
    "DraftSpec",
    "Finding",
    "Inspection",
    "Severity",
    "TargetFacts",
    "inspect_draft",
    "read_config",
    "read_draft_files",
]
