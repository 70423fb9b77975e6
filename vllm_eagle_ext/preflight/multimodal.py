# SPDX-License-Identifier: Apache-2.0
"""Refuses targets whose image token vLLM's V1 runner cannot find: it looks it up for every draft."""

from __future__ import annotations

from typing import Any, Literal

from vllm_eagle_ext.errors import UnsupportedTargetError

# Those that vLLM's V1 proposer knows by name; from others it takes `image_token_index`.
NAMED = (
    "BailingMoeV3VLForConditionalGeneration",
    "Cohere2VisionForConditionalGeneration",
    "Exaone4_5_ForConditionalGeneration",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "GlmOcrForConditionalGeneration",
    "HunYuanVLForConditionalGeneration",
    "InternS2PreviewForConditionalGeneration",
    "KimiK25ForConditionalGeneration",
    "KimiK3ForConditionalGeneration",
    "MiMoV2OmniForCausalLM",
    "NemotronH_Nano_VL_V2",
    "PixtralForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "Step3p7ForConditionalGeneration",
)

# Whose class takes the config's `image_token_id` for it, before the draft is loaded.
STATING_IT = ("InternS2MobiusForConditionalGeneration",)


def check_multimodal(target_model_config: Any, runner: Literal["v1", "v2"] | None) -> None:
    """Refuse a target whose image token V1 cannot find. V2 drafts for any target, from its text.

    Raises:
        UnsupportedTargetError: V1 would fail once the weights are loaded.
    """
    if runner != "v1" or not target_model_config.is_multimodal_model:
        return
    model = served_class(target_model_config)
    config = target_model_config.hf_config
    if model in (*NAMED, *STATING_IT) or hasattr(config, "image_token_index"):
        return
    stated = getattr(config, "image_token_id", None)
    raise no_image_token(target_model_config.architecture, model, stated)


def no_image_token(architecture: str, served_by: str, stated: object) -> UnsupportedTargetError:
    """Make the refusal of a target that the vLLM class `served_by` serves.

    Args:
        stated: the config's `image_token_id`, which V1 reads of those that it knows; None: it has none.
    """
    name_it = f"--hf-overrides '{{\"image_token_index\": {stated}}}', "
    return UnsupportedTargetError(
        field=f"class that serves the target's {architecture}",
        value=served_by,
        allowed="with a draft on vLLM's V1 runner, a target without images, one whose config has "
        "image_token_index, or one that V1 knows by name: " + ", ".join(NAMED),
        remedy=(name_it if type(stated) is int else "")
        + "VLLM_USE_V2_MODEL_RUNNER=1 where there is Triton, or serve the target without a draft",
    )


def served_class(model_config: Any) -> str:
    """Name vLLM's class: several architectures may share one, or have one for another runner."""
    info, _ = model_config.registry.inspect_model_cls(model_config.architectures, model_config)
    return str(info.architecture)
