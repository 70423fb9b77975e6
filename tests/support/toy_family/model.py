"""The drafter class: vLLM's, with one step more."""

from __future__ import annotations

import torch
from vllm.config import VllmConfig
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM

from vllm_eagle_ext.families.parts.resolved import ResolvedDraft


class Eagle3EagleExtToyForCausalLM(ResolvedDraft, Eagle3LlamaForCausalLM):
    """Differences from the parent: the fused features are normed and scaled."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.model.feature_norm = RMSNorm(self.config.hidden_size, eps=self.config.rms_norm_eps)

    def combine_hidden_states(self, states: torch.Tensor) -> torch.Tensor:  # [T, n * Ht] -> [T, H]
        return self.config.feature_scale * self.model.feature_norm(super().combine_hidden_states(states))
