# SPDX-License-Identifier: Apache-2.0
"""What is asked of a draft: all that the rules of its files see of an engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

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
