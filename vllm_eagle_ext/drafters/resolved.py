# SPDX-License-Identifier: Apache-2.0
"""What all drafters share: a config that preflight has resolved, and weights that all arrive."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.lora.layers.base import BaseLayerWithLoRA

from vllm_eagle_ext import compat
from vllm_eagle_ext.drafters.strict_weights import LoadingPlan, StrictWeights
from vllm_eagle_ext.resolved_marker import require_marker


class ResolvedDraft(StrictWeights):
    """Stands before one of vLLM's drafter classes as a mixin, and does not change its maths.

    The parent would fill each gap of a config with a default, and each gap of the weights with
    whatever the memory held.

    Raises:
        UnsupportedDraftError: the draft's config was not resolved by this version's preflight.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        marker = require_marker(vllm_config.speculative_config.draft_model_config.hf_config)
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        compat.install_in_worker()
        self.loading_plan = LoadingPlan(**marker["weights"])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Arguments and shapes: the drafter's own."""
        self._share_plainly()
        return super().forward(*args, **kwargs)  # type: ignore[misc]

    def _share_plainly(self) -> None:
        """V1 shares the target's embeddings together with its adapters, which go by the tokens of the
        target's batch: the draft has others. V2 shares them plain, as done here. REMOVE WHEN V1's
        `_maybe_share_embeddings` does, or goes."""
        inner = self.model  # type: ignore[attr-defined]
        if isinstance(inner.embed_tokens, BaseLayerWithLoRA):
            inner.embed_tokens = inner.embed_tokens.base_layer
