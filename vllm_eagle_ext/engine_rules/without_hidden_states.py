# SPDX-License-Identifier: Apache-2.0
"""Architectures whose class in vLLM hands out no hidden states, by release.

`python -m tests.contract` derives them from vLLM's source: what generates text and lacks the interface
`SupportsEagle3`. A class of one platform that has it counts for all.
"""

from __future__ import annotations

from collections.abc import Mapping

_OF_BOTH = frozenset(
    {
        "AXK1ForCausalLM", "AriaForConditionalGeneration", "AudioFlamingo3ForConditionalGeneration",
        "BagelForConditionalGeneration", "BailingMoeForCausalLM", "BailingMoeV2ForCausalLM",
        "BailingMoeV2_5ForCausalLM", "BailingMoeV3ForCausalLM",
        "BailingMoeV3VLForConditionalGeneration", "BeeForConditionalGeneration",
        "Blip2ForConditionalGeneration", "BloomForCausalLM", "ChatGLMForConditionalGeneration",
        "ChatGLMModel", "Cohere2ForCausalLM", "Cohere2VisionForConditionalGeneration",
        "CohereAsrForConditionalGeneration", "CohereForCausalLM", "Cosmos3EdgeForConditionalGeneration",
        "DbrxForCausalLM", "DeciLMForCausalLM", "DeepseekOCR2ForCausalLM", "DeepseekOCRForCausalLM",
        "DeepseekVLV2ForCausalLM", "DiffusionGemmaForBlockDiffusion", "Dots3NoteForCausalLM",
        "DotsOCRForCausalLM", "Eagle2_5_VLForConditionalGeneration", "Ernie4_5_MoeForCausalLM",
        "Ernie4_5_VLMoeForConditionalGeneration", "Exaone4ForCausalLM", "ExaoneForCausalLM",
        "ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM", "FalconForCausalLM", "FalconH1ForCausalLM",
        "FalconMambaForCausalLM", "FireRedASR2ForConditionalGeneration",
        "FunASRForConditionalGeneration", "FunAudioChatForConditionalGeneration", "GLM4VForCausalLM",
        "GPT2LMHeadModel", "GPTJForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM",
        "Gemma3ForConditionalGeneration", "Gemma3nForCausalLM", "Gemma3nForConditionalGeneration",
        "GemmaForCausalLM", "Glm4ForCausalLM", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM",
        "Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration",
        "GlmAsrForConditionalGeneration", "GlmOcrForConditionalGeneration",
        "Granite4VisionForConditionalGeneration", "GraniteMoeHybridForCausalLM",
        "GraniteSpeechForConditionalGeneration", "GraniteSpeechPlusForConditionalGeneration",
        "H2OVLChatModel", "HCXVisionV2ForCausalLM", "HYV3ForCausalLM", "HYV4ForCausalLM", "HfMoondream",
        "HrmTextForCausalLM", "HyperCLOVAXForCausalLM", "IQuestLoopCoderForCausalLM",
        "Idefics3ForConditionalGeneration", "InklingForCausalLM", "InklingForConditionalGeneration",
        "InternLM2ForCausalLM", "InternS1ForConditionalGeneration", "InternVLChatModel",
        "InternVLForConditionalGeneration", "IsaacForConditionalGeneration", "JambaForCausalLM",
        "KananaVForConditionalGeneration", "KeyeForConditionalGeneration",
        "KeyeVL1_5ForConditionalGeneration", "KimiVLForConditionalGeneration", "Lfm2ForCausalLM",
        "Lfm2MoeForCausalLM", "Lfm2VlForConditionalGeneration", "Llama_Nemotron_Nano_VL",
        "LlavaNextForConditionalGeneration", "LlavaNextVideoForConditionalGeneration",
        "LlavaOnevision2ForConditionalGeneration", "LlavaOnevisionForConditionalGeneration",
        "LongcatFlashForCausalLM", "LongcatFlashNgramForCausalLM", "Mamba2ForCausalLM",
        "MambaForCausalLM", "MiDashengLMModel", "MiniCPMO", "MiniCPMV", "MixtralForCausalLM",
        "Molmo2ForConditionalGeneration", "MolmoForCausalLM", "Moondream3ForCausalLM",
        "MoonshotKimiaForCausalLM", "MossAudioModel", "MossTranscribeDiarizeForConditionalGeneration",
        "NVLM_D", "NemotronForCausalLM", "NemotronParseForConditionalGeneration", "OPTForCausalLM",
        "OlmoHybridForCausalLM", "OlmoeForCausalLM", "OpenPanguVLForConditionalGeneration",
        "OpenVLAForActionPrediction", "OrionForCausalLM", "Ovis", "Ovis2_5", "Ovis2_6ForCausalLM",
        "Ovis2_6_MoeForCausalLM", "PaddleOCRVLForConditionalGeneration",
        "PaliGemmaForConditionalGeneration", "PanguEmbeddedForCausalLM", "PanguProMoEV2ForCausalLM",
        "PanguUltraMoEForCausalLM", "Param2MoEForCausalLM", "Phi3VForCausalLM", "Phi4ForCausalLMV",
        "Phi4MMForCausalLM", "PhiMoEForCausalLM", "QianfanOCRForConditionalGeneration",
        "Qwen2AudioForConditionalGeneration", "Qwen2MoeForCausalLM", "Qwen2VLForConditionalGeneration",
        "Qwen2_5OmniForConditionalGeneration", "Qwen2_5OmniModel", "Qwen4ExpForCausalLM",
        "RForConditionalGeneration", "Rnj1ForCausalLM", "SarvamMoEForCausalLM", "SkyworkR1VChatModel",
        "SmolVLMForConditionalGeneration", "SolarForCausalLM", "StableLmForCausalLM",
        "Step3TextForCausalLM", "Step3VLForConditionalGeneration", "Step3p5ForCausalLM",
        "Step3p7ForConditionalGeneration", "StepVLForConditionalGeneration", "UltravoxModel",
        "UnlimitedOCRForCausalLM", "VoxtralForConditionalGeneration", "VoxtralRealtimeGeneration",
        "WhisperForConditionalGeneration", "Zamba2ForCausalLM",
    }
)  # fmt: skip
WITHOUT_HIDDEN_STATES: Mapping[str, frozenset[str]] = {
    "0.32": _OF_BOTH | {
        "GraniteMoeForCausalLM", "GraniteMoeSWAForCausalLM", "GraniteMoeSharedForCausalLM",
    },
    "0.33": _OF_BOTH | {
        "AliceAIForCausalLM", "DomynEdgeForCausalLM", "DoryForCausalLM", "FlintForCausalLM",
        "Step5ForCausalLM", "Step5ForConditionalGeneration",
    },
}  # fmt: skip


# Whose class has the interface for whatever language model the config names.
_HOLDING_ANY = frozenset(
    {
        "LlavaForConditionalGeneration", "Mistral3ForConditionalGeneration",
        "PixtralForConditionalGeneration",
    }
)  # fmt: skip


def lacks_hidden_states(architecture: str, release: str, inner: object = None) -> bool | None:
    """Tell whether vLLM's own class of an architecture lacks them; None: the release was not read.

    Args:
        inner: the architectures that the config of the language model names.
    """
    names = WITHOUT_HIDDEN_STATES.get(".".join(release.split(".")[:2]))
    if names is None:
        return None
    if architecture in _HOLDING_ANY and isinstance(inner, list) and inner:
        architecture = str(inner[0])
    return architecture in names
