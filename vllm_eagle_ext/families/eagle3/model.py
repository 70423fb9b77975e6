# SPDX-License-Identifier: Apache-2.0
"""EAGLE-3 drafters on vLLM's Llama, Qwen3 and DeepSeek (MLA) decoder layers.

Differences from vLLM's classes: the attention may be gated, see `families/parts/gated_attention.py`;
nothing else in the maths, which vLLM has for post-norm and N aux layers; configs and weights are strict,
see `ResolvedDraft`.

Maths: EAGLE-3 (Li et al., 2025); per-layer `fc_norm` and post-norm feedback: arXiv 2605.09992.

Shapes, with T tokens, H draft width, Ht target width, n aux layers, V vocabulary:

`combine_hidden_states`: [T, n * Ht] -> [T, H], columns in ascending order of aux layer.
`forward`: ids [T], positions [T], states [T, H] -> (states for the head [T, H], feedback [T, H]).
`compute_logits`: [T, H] -> [T, V], -inf outside the draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.models.deepseek_eagle3 import Eagle3DeepseekV2ForCausalLM
from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM
from vllm.model_executor.models.qwen3_eagle3 import Eagle3Qwen3ForCausalLM

from vllm_eagle_ext.families.parts.gate_rows import GatePlan, with_gates
from vllm_eagle_ext.families.parts.gated_attention import add_gate
from vllm_eagle_ext.families.parts.resolved import ResolvedDraft


class GatableDraft(ResolvedDraft):
    """Gates every layer's attention where the draft has gates."""

    gate_plan: GatePlan | None

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        plan = self.loading_plan.gate
        self.gate_plan = GatePlan(**plan) if plan else None
        if self.gate_plan is not None:
            for layer in self.model.layers:  # type: ignore[attr-defined]
                add_gate(layer.self_attn)

    def arranged(
        self, weights: Iterable[tuple[str, torch.Tensor]], seen: set[str]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        arranged = super().arranged(weights, seen)
        if self.gate_plan is None:
            return arranged
        return with_gates(arranged, self.gate_plan, get_tensor_model_parallel_world_size())


class Eagle3EagleExtLlamaForCausalLM(GatableDraft, Eagle3LlamaForCausalLM):
    """EAGLE-3 on Llama layers, whose attention may be gated."""


class Eagle3EagleExtQwen3ForCausalLM(GatableDraft, Eagle3Qwen3ForCausalLM):
    """EAGLE-3 on Qwen3 layers, whose attention may be gated."""


class Eagle3EagleExtDeepseekV2ForCausalLM(ResolvedDraft, Eagle3DeepseekV2ForCausalLM):
    """EAGLE-3 on DeepSeek layers, with latent attention."""
