# SPDX-License-Identifier: Apache-2.0
"""EAGLE-3's drafter classes."""

from __future__ import annotations

from vllm_eagle_ext.families.drafter_classes import QWEN3, Backbone, Drafter

_PACKAGE = "vllm_eagle_ext.families.eagle3"
_LLAMA = Backbone(name="llama", model_type="llama", rope_theta=10_000, has_mlp_bias=True)
_DEEPSEEK = Backbone(name="deepseek", model_type="kimi_k2", rope_theta=10_000, has_kv_heads=False)

P_EAGLE = "PEagleDraftModel"  # SpecForge's; speculators names the family by its type
# Architectures that are P-EAGLE whatever the files hold.
P_EAGLES = (P_EAGLE, "PeagleLlamaForCausalLM", "PeagleQwen3ForCausalLM")
NEMO = "LlamaEagle3DraftModel"

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
        "CosyVoice3Eagle3LlamaForCausalLM",  # AngelSlim
        # NeMo AutoModel, whose config says the first one whatever the class.
        NEMO,
        "GptOssEagle3DraftModel",
        # P-EAGLE of SpecForge, and as vLLM calls those of speculators.
        P_EAGLE,
        "PeagleLlamaForCausalLM",
    ),
    speculators=(("eagle3", "llama"), ("peagle", "llama")),
    can_gate=True,
)
QWEN3_DRAFTER = Drafter(
    architecture="Eagle3EagleExtQwen3ForCausalLM",
    package=_PACKAGE,
    method="eagle3",
    backbone=QWEN3,
    published=(
        "Eagle3Qwen3ForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3Eagle3Model",  # DeepSpec
        "PeagleQwen3ForCausalLM",  # as vLLM calls those of speculators
    ),
    speculators=(("eagle3", "qwen3"), ("peagle", "qwen3")),
    can_gate=True,
    omits_self_attn=True,
)
DEEPSEEK_DRAFTER = Drafter(
    architecture="Eagle3EagleExtDeepseekV2ForCausalLM",
    package=_PACKAGE,
    method="eagle3",
    backbone=_DEEPSEEK,
    published=(
        "Eagle3DeepseekV2ForCausalLM",
        "Eagle3DeepseekV3ForCausalLM",
        "DeepseekV3Eagle3DraftModel",  # NeMo AutoModel
    ),
    published_with_type=((NEMO, "deepseek_v3"), (NEMO, "kimi_k2"), (NEMO, "kimi_linear")),
)

DRAFTERS = (LLAMA_DRAFTER, QWEN3_DRAFTER, DEEPSEEK_DRAFTER)
