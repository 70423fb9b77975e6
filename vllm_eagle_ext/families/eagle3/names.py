# SPDX-License-Identifier: Apache-2.0
"""EAGLE-3's drafter classes."""

from __future__ import annotations

from vllm_eagle_ext.drafter_classes import QWEN3, Backbone, Drafter

_PACKAGE = "vllm_eagle_ext.families.eagle3"
_LLAMA = Backbone(name="llama", model_type="llama", rope_theta=10_000, has_mlp_bias=True)
_DEEPSEEK = Backbone(name="deepseek", model_type="kimi_k2", rope_theta=10_000, has_kv_heads=False)

P_EAGLE = "PEagleDraftModel"  # SpecForge's; speculators names the family by its type

LLAMA_DRAFTER = Drafter(
    architecture="Eagle3EagleExtLlamaForCausalLM",
    package=_PACKAGE,
    method="eagle3",
    backbone=_LLAMA,
    published=(
        "LlamaForCausalLMEagle3",
        "Eagle3LlamaForCausalLM",
        "LlamaForCausalLM",  # older EAGLE-3 heads
        # The same class of vLLM's under other names.
        "Eagle3MiniMaxM2ForCausalLM",
        "Eagle3Qwen2_5vlForCausalLM",
        "Eagle3Qwen3vlForCausalLM",
        P_EAGLE,
    ),
    speculators=(("eagle3", "llama"), ("peagle", "llama")),
    aliases=("Eagle3PEagleDraftModel",),  # what vLLM makes of the last one
    can_gate=True,
)
QWEN3_DRAFTER = Drafter(
    architecture="Eagle3EagleExtQwen3ForCausalLM",
    package=_PACKAGE,
    method="eagle3",
    backbone=QWEN3,
    published=("Eagle3Qwen3ForCausalLM", "Qwen3ForCausalLM"),
    speculators=(("eagle3", "qwen3"), ("peagle", "qwen3")),
    can_gate=True,
    omits_self_attn=True,
)
DEEPSEEK_DRAFTER = Drafter(
    architecture="Eagle3EagleExtDeepseekV2ForCausalLM",
    package=_PACKAGE,
    method="eagle3",
    backbone=_DEEPSEEK,
    published=("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM"),
)

DRAFTERS = (LLAMA_DRAFTER, QWEN3_DRAFTER, DEEPSEEK_DRAFTER)
