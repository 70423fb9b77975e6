# SPDX-License-Identifier: Apache-2.0
"""One draft with its target and what is asked of it: what the rules look at, and all that they see of an
engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vllm_eagle_ext.draft.draft_config import DraftConfig
from vllm_eagle_ext.draft.draft_files import DraftFiles
from vllm_eagle_ext.draft.spec import DraftSpec, Expected
from vllm_eagle_ext.draft.target_facts import TargetFacts
from vllm_eagle_ext.options import Options

Runner = Literal["v1", "v2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRequest:
    """Holds what a user asks of a draft. None: not said, and what depends on it is not judged."""

    options: Options = field(default_factory=Options)
    method: str | None = None
    k: int | None = None
    max_model_len: int | None = None
    runner: Runner | None = None
    parallel_drafting: bool | None = None
    # Whether the V2 runner wants aux states whatever the draft's config says, as 0.32's does.
    v2_needs_aux_states: bool = True
    registered: frozenset[str] = frozenset()  # architectures of others that this vLLM knows


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
