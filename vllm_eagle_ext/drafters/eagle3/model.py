# SPDX-License-Identifier: Apache-2.0
"""EAGLE-3 drafters on vLLM's Llama, Qwen3 and DeepSeek (MLA) decoder layers.

Differences from vLLM's classes: none in the maths, which vLLM has for every feature here, post-norm
and N aux layers included; configs and weights are strict, see `ResolvedDraft`.

Maths: EAGLE-3 (Li et al., 2025); per-layer `fc_norm` and post-norm feedback: arXiv 2605.09992.

Shapes, with T tokens, H draft width, Ht target width, n aux layers, V vocabulary:

`combine_hidden_states`: [T, n * Ht] -> [T, H], columns in ascending order of boundary.
`forward`: ids [T], positions [T], states [T, H] -> (states for the head [T, H], feedback [T, H]).
`compute_logits`: [T, H] -> [T, V], -inf outside the draft vocabulary.
"""

from __future__ import annotations

from vllm.model_executor.models.deepseek_eagle3 import Eagle3DeepseekV2ForCausalLM
from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM
from vllm.model_executor.models.qwen3_eagle3 import Eagle3Qwen3ForCausalLM

from vllm_eagle_ext.drafters.resolved import ResolvedDraft


class Eagle3EagleExtLlamaForCausalLM(ResolvedDraft, Eagle3LlamaForCausalLM):
    """Shapes: see the module."""


class Eagle3EagleExtQwen3ForCausalLM(ResolvedDraft, Eagle3Qwen3ForCausalLM):
    """Shapes: see the module."""


class Eagle3EagleExtDeepseekV2ForCausalLM(ResolvedDraft, Eagle3DeepseekV2ForCausalLM):
    """Shapes: see the module."""
