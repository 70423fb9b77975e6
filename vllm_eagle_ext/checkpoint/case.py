# SPDX-License-Identifier: Apache-2.0
"""One draft with its target and what is asked of it: what the rules look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_eagle_ext.checkpoint.draft_config import DraftConfig
from vllm_eagle_ext.checkpoint.draft_files import DraftFiles
from vllm_eagle_ext.checkpoint.request import DraftRequest
from vllm_eagle_ext.checkpoint.spec import DraftSpec, Expected
from vllm_eagle_ext.checkpoint.target_facts import TargetFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    files: DraftFiles
    flat: Mapping[str, Any]  # `flatten(files.config)`
    config: DraftConfig
    spec: DraftSpec
    expected: Mapping[str, Expected]  # by canonical name, as the draft's family says
    target: TargetFacts  # without rows that the draft does not know, which are its padding
    request: DraftRequest

    @property
    def is_reduced(self) -> bool:
        return self.spec.vocabulary.size < self.target.vocab_size

    @property
    def has_tensors(self) -> bool:
        return self.files.weights == "safetensors"
