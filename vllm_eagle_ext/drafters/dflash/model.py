# SPDX-License-Identifier: Apache-2.0
"""DFlash drafter on vLLM's Qwen3-type decoder layer.

Differences from vLLM's class: none in the maths; configs and weights are strict, see `ResolvedDraft`.

Shapes, with T tokens, H draft width, Ht target width, n aux layers, V vocabulary:

`combine_hidden_states`: [T, n * Ht] -> [T, H], columns in ascending order of boundary.
`precompute_and_store_context_kv`: states [T, H], positions [T] -> keys and values in the draft's cache.
`forward`: ids [T], positions [T] -> [T, H]; a block is the last sampled token and K mask tokens.
`compute_logits`: [T, H] -> [T, V].

Maths: DFlash (z-lab), block diffusion conditioned on the target's states.
"""

from __future__ import annotations

from vllm.model_executor.models.qwen3_dflash import DFlashQwen3ForCausalLM

from vllm_eagle_ext.drafters.resolved import ResolvedDraft


class DFlashEagleExtQwen3ForCausalLM(ResolvedDraft, DFlashQwen3ForCausalLM):
    """Shapes: see the module."""
