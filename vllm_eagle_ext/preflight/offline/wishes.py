# SPDX-License-Identifier: Apache-2.0
"""What a user asks of a planned engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vllm_eagle_ext.options import Options

Runner = Literal["v1", "v2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWishes:
    """Holds what the user asks of the engine."""

    k: int
    tp: int
    prefix_caching: bool | None  # None: vLLM's default
    options: Options
    max_model_len: int | None = None  # None: the target's
    speculative: Mapping[str, Any] = field(default_factory=dict)  # further keys, spelt as vLLM does
    engine: Mapping[str, Any] = field(default_factory=dict)  # further keywords of LLM()

    def ranks(self, keyword: str) -> int:
        """Read a number of ranks; one that is no number is passed through to vLLM."""
        given = self.engine.get(keyword)
        return given if isinstance(given, int) else 1

    @property
    def schedule(self) -> object:
        """Return vLLM's schedule of K as a start hands it over; with data parallelism vLLM turns it
        off."""
        if self.ranks("data_parallel_size") > 1:
            return None
        return self.speculative.get("num_speculative_tokens_per_batch_size")
