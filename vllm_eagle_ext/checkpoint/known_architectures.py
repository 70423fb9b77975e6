# SPDX-License-Identifier: Apache-2.0
"""Names that say something of a draft although no family of this package has them."""

from __future__ import annotations

from collections.abc import Mapping

# Plain models, and older EAGLE-3 heads: the name by itself does not make a draft of a model.
PLAIN_MODELS = ("LlamaForCausalLM", "Qwen3ForCausalLM")

# Served by vLLM itself, under their own names and rules.
PASSED_THROUGH = frozenset(
    {
        "DFlash2BeamDraftModel", "DFlashLagunaForCausalLM",
        "DFlashMuseGlimmerAssistantModel", "DFlashQwen3XPressModel", "DSparkDraftModel",
        "DSparkV41DraftModel", "Gemma4DSparkModel", "K3DSparkModel", "LiLiCorrDraftModel",
        "MuseGlimmerAssistantModel", "Qwen3OmniDSparkModel",
    }
)  # fmt: skip
SPECULATORS_PASSED_THROUGH = frozenset({"eagle"})
# vLLM looks for a DSpark draft of any other name inside the target, and takes these types for such.
IN_THE_TARGET, IN_TARGETS_OF = "DSparkDraftModel", frozenset({"deepseek_v4", "deepseek_v41"})

# Not what their names promise.
REFUSED: Mapping[str, str] = {
    "LlamaForCausalLMEagle3Gated": "it gates its MLP by draft depth, which no drafter of vLLM computes",
}

# vLLM rewrites these model types into MTP drafts before it looks at the method.
TAKEN_FOR_MTP = frozenset(
    {
        "bailing_hybrid", "deepseek_v3", "deepseek_v32", "deepseek_v4", "deepseek_v41", "ernie4_5_moe",
        "exaone_moe", "glm5_next", "glm_moe_dsa", "hy_v3", "hy_v4", "kimi_k3", "longcat_flash",
        "pangu_ultra_moe", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
        "step3p5", "step3p7",
    }
)  # fmt: skip
