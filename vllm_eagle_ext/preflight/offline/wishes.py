# SPDX-License-Identifier: Apache-2.0
"""What a user asks of a planned engine."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from vllm_eagle_ext.draft_length.menu import schedule_of
from vllm_eagle_ext.errors import OptionsError
from vllm_eagle_ext.options import Options
from vllm_eagle_ext.preflight.auto_rules import chosen_menu

Runner = Literal["v1", "v2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWishes:
    """Holds what the user asks of the engine."""

    k: int
    tp: int
    prefix_caching: bool | None  # None: vLLM's default
    options: Options
    max_model_len: int | None = None  # None: the target's
    passed_through: bool = False  # the draft, which is of another kind
    speculative: Mapping[str, Any] = field(default_factory=dict)  # further keys, spelt as vLLM does
    engine: Mapping[str, Any] = field(default_factory=dict)  # further keywords of LLM()

    def ranks(self, keyword: str) -> int:
        """Read a number of ranks; one that is no number is passed through to vLLM."""
        given = self.engine.get(keyword)
        return given if isinstance(given, int) else 1

    @property
    def chooses_k(self) -> bool:
        return self.options.enabled and self.options.draft_length == "auto"

    @property
    def schedule(self) -> object:
        """vLLM's schedule of K as a start hands it over; with data parallelism vLLM turns it off."""
        if self.ranks("data_parallel_size") > 1:
            return None
        if self.chooses_k:
            with suppress(OptionsError):  # which a check of its own reports
                return schedule_of(chosen_menu(self.options.draft_lengths, self.k))
        return self.speculative.get("num_speculative_tokens_per_batch_size")
