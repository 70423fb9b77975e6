# SPDX-License-Identifier: Apache-2.0
"""EAGLE-3 drafter on the Llama decoder layer, post-norm and N aux layers included.

Differences from vllm's Eagle3LlamaForCausalLM: none in the maths, which vLLM has for every feature
here. The class exists to refuse a config that the intake has not resolved, because the parent would
fill each gap with a default and draft garbage.

Maths: EAGLE-3 (Li et al., 2025); per-layer `fc_norm` and post-norm feedback: arXiv 2605.09992.
"""

from __future__ import annotations

from vllm.config import VllmConfig
from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM

from vllm_eagle_ext.stamp import require_stamp


class Eagle3EagleExtLlamaForCausalLM(Eagle3LlamaForCausalLM):
    """Shapes, with T tokens, H draft width, Ht target width, n aux layers, Vd draft vocabulary:

    `combine_hidden_states`: [T, n * Ht] -> [T, H], columns in ascending order of boundary.
    `forward`: ids [T], positions [T], states [T, H] -> (states for the head [T, H], feedback [T, H]).
    `compute_logits`: [T, H] -> [T, V], -inf outside the draft vocabulary.

    Raises:
        UnsupportedDraftError: the draft's config was not resolved by this version's intake.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        assert vllm_config.speculative_config is not None
        require_stamp(vllm_config.speculative_config.draft_model_config.hf_config)
        super().__init__(vllm_config=vllm_config, prefix=prefix)
