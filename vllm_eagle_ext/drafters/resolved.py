# SPDX-License-Identifier: Apache-2.0
"""What all drafters share: a config that the intake has resolved, and weights that all arrive."""

from __future__ import annotations

from vllm.config import VllmConfig

from vllm_eagle_ext.drafters.weights import LoadingPlan, StrictWeights
from vllm_eagle_ext.stamp import require_stamp


class ResolvedDraft(StrictWeights):
    """Mixed in before one of vLLM's drafter classes, whose maths it leaves alone.

    The parent would fill each gap of a config with a default, and each gap of the weights with
    whatever the memory held.

    Raises:
        UnsupportedDraftError: the draft's config was not resolved by this version's intake.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        stamp = require_stamp(vllm_config.speculative_config.draft_model_config.hf_config)
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        self.loading_plan = LoadingPlan(**stamp["weights"])
