# SPDX-License-Identifier: Apache-2.0
"""What a draft says in config.json and safetensors headers, and the rules that it must keep.

Nothing here needs vLLM or torch.
"""

from __future__ import annotations

from vllm_eagle_ext.draft.draft_files import DraftFiles, read_config, read_draft_files
from vllm_eagle_ext.draft.findings import Finding, Severity
from vllm_eagle_ext.draft.inspection import Inspection, inspect_draft
from vllm_eagle_ext.draft.spec import Case, DraftSpec
from vllm_eagle_ext.draft.target_facts import TargetFacts

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
