# SPDX-License-Identifier: Apache-2.0
"""One draft in one setting: what the rules look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vllm_eagle_ext.checkpoint.draft_config import DraftConfig
from vllm_eagle_ext.checkpoint.draft_files import DraftFiles
from vllm_eagle_ext.checkpoint.draft_window import WindowOption
from vllm_eagle_ext.checkpoint.gate_layout import GateLayout
from vllm_eagle_ext.checkpoint.spec import DraftSpec
from vllm_eagle_ext.checkpoint.target_facts import TargetFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the user asks for. None: not known here, and what depends on it is not judged."""

    method: str | None = None
    k: int | None = None
    max_model_len: int | None = None
    runner: Literal["v1", "v2"] | None = None
    v2_runner_needs_aux_states: bool = True
    parallel_drafting: bool | None = None
    gate_layout: GateLayout | None = None  # the option, whatever the checkpoint states
    draft_window: WindowOption = None  # the option
    registered: frozenset[str] = frozenset()  # other architectures that this vLLM knows
    model_types: frozenset[str] | None = None  # that this vLLM can read the config of


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    files: DraftFiles
    flat: Mapping[str, Any]  # `flatten(files.config)`
    config: DraftConfig
    spec: DraftSpec
    target: TargetFacts
    setting: Setting

    @property
    def is_reduced(self) -> bool:
        return self.spec.vocabulary.size < self.target.vocab_size

    @property
    def has_tensors(self) -> bool:
        return self.files.weights == "safetensors"
