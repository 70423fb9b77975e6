# SPDX-License-Identifier: Apache-2.0
"""Published architecture -> which drafter serves it.

Only architectures of this table are touched: vLLM picks some variants by their exact name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Backbone = Literal["llama", "qwen3", "deepseek"]
Family = Literal["native", "post-norm", "gated", "mla", "p-eagle", "dflash"]

EAGLE3 = ("native", "post-norm", "gated", "mla", "p-eagle")
FUSED_QKV = ("native", "post-norm", "gated", "p-eagle", "dflash")  # all but MLA


@dataclass(frozen=True, slots=True)
class Kind:
    method: str  # of speculative_config
    backbone: Backbone
    drafter: str  # our registered architecture


_LLAMA = Kind("eagle3", "llama", "Eagle3EagleExtLlamaForCausalLM")
_QWEN3 = Kind("eagle3", "qwen3", "Eagle3EagleExtQwen3ForCausalLM")
_DEEPSEEK = Kind("eagle3", "deepseek", "Eagle3EagleExtDeepseekV2ForCausalLM")
_DFLASH = Kind("dflash", "qwen3", "DFlashEagleExtQwen3ForCausalLM")

P_EAGLE = "PEagleDraftModel"  # SpecForge's; speculators names the family by its type

PUBLISHED: Mapping[str, Kind] = {
    "LlamaForCausalLMEagle3": _LLAMA,
    "Eagle3LlamaForCausalLM": _LLAMA,
    "LlamaForCausalLM": _LLAMA,  # older EAGLE-3 heads
    "Eagle3Qwen3ForCausalLM": _QWEN3,
    "Qwen3ForCausalLM": _QWEN3,
    "Eagle3DeepseekV2ForCausalLM": _DEEPSEEK,
    "Eagle3DeepseekV3ForCausalLM": _DEEPSEEK,
    # The same class of vLLM's under other names.
    "Eagle3MiniMaxM2ForCausalLM": _LLAMA,
    "Eagle3Qwen2_5vlForCausalLM": _LLAMA,
    "Eagle3Qwen3vlForCausalLM": _LLAMA,
    "DFlashDraftModel": _DFLASH,
    P_EAGLE: _LLAMA,
}
# (speculators_model_type, model_type of its transformer_layer_config)
SPECULATORS: Mapping[tuple[str, str], Kind] = {
    ("eagle3", "llama"): _LLAMA,
    ("eagle3", "qwen3"): _QWEN3,
    ("peagle", "llama"): _LLAMA,
    ("peagle", "qwen3"): _QWEN3,
    ("dflash", "qwen3"): _DFLASH,
}

# Served by vLLM itself, under their own names and rules.
LEFT_TO_VLLM = frozenset(
    {
        "DFlash2BeamDraftModel", "DFlash2DraftModel", "DFlashLagunaForCausalLM",
        "DFlashMuseGlimmerAssistantModel", "DFlashQwen3XPressModel", "DSparkDraftModel",
        "DSparkV41DraftModel", "Gemma4DSparkModel", "K3DSparkModel", "LiLiCorrDraftModel",
        "MuseGlimmerAssistantModel", "Qwen3DSparkModel", "Qwen3OmniDSparkModel",
    }
)  # fmt: skip
LEFT_SPECULATORS = frozenset({"dflash2", "dspark", "eagle"})

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


def published_architecture(config: Mapping[str, Any]) -> str:
    """The first of `architectures`, or "" if there is none."""
    architectures = config.get("architectures")
    named = isinstance(architectures, list) and architectures and isinstance(architectures[0], str)
    return architectures[0] if named else ""  # type: ignore[index]


def kind_of(config: Mapping[str, Any], layer_model_type: object) -> Kind | None:
    """None: not ours. A speculators draft is named by its type, others by their architecture."""
    speculators = config.get("speculators_model_type")
    if isinstance(speculators, str):
        layer = layer_model_type if isinstance(layer_model_type, str) else "llama"
        return SPECULATORS.get((speculators, layer))
    return PUBLISHED.get(published_architecture(config))
