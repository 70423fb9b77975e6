"""What a draft claims to be, wrongly."""

from __future__ import annotations

from tests.support.drafts import LAYER
from tests.unit.draft.rules.broken import case
from tests.unit.draft.rules.changes import as_eagle_1, key, more, no_key, no_tensor

EAGLE_1 = ["EAGLE-1 or EAGLE-2", 'write "method": "eagle"', '"architectures": ["LlamaForCausalLM"]']

# fmt: off
CASES = [
    case(
        "architecture_is_served", "missing", "native", no_key("architectures"),
        words=("architectures", "missing", "LlamaForCausalLMEagle3"),
    ),
    case(
        "architecture_is_served", "empty", "dflash", key("architectures", []),
        words=("architectures", "[]"),
    ),
    case(
        "architecture_is_served", "text", "mla", key("architectures", "LlamaForCausalLMEagle3"),
        words=("architectures of", "'LlamaForCausalLMEagle3'"),
    ),
    case(
        "speculators_type_is_named", "missing", "native", key("speculators_config", {}),
        words=("speculators_model_type", "missing", "eagle3, peagle, dflash, dflash2 or dspark"),
    ),
    case(
        "architecture_is_served", "gated_by_depth", "native",
        key("architectures", ["LlamaForCausalLMEagle3Gated"]),
        words=("'LlamaForCausalLMEagle3Gated'", "Eagle3DeepseekV2ForCausalLM", "no drafter of vLLM"),
    ),
    case(
        "architecture_is_served", "unknown", "qwen3", key("architectures", ["Eagle3NewForCausalLM"]),
        words=(
            "'Eagle3NewForCausalLM'", "DFlashDraftModel", "no drafter of that name",
            'edit config.json: "architectures": ["Eagle3Qwen3ForCausalLM"]',
        ),
    ),
    case(
        "architecture_is_served", "p_eagle_by_name", "native",
        key("architectures", ["PEagleLlamaForCausalLM"]),
        words=("'PEagleLlamaForCausalLM'", "no drafter of that name"),
    ),
    *(
        case(
            "architecture_is_served", f"{name}_on_{family}", family, *changes,
            key("architectures", [name]), words=(f"'{name}'", *words),
        )
        for name, family, changes, words in [
            ("NewModel", "native", [], ['"architectures": ["LlamaForCausalLMEagle3"]']),
            ("NewModel", "mla", [], ['"architectures": ["Eagle3DeepseekV3ForCausalLM"]']),
            ("NewModel", "dflash", [], ['"architectures": ["DFlashDraftModel"]']),
            ("NewModel", "dflash2", [], ['"architectures": ["DFlash2DraftModel"]']),
            ("NewModel", "dspark", [], ['"architectures": ["Qwen3DSparkModel"]']),
            ("NewDomino", "dflash", [more("prefix_gru.weight_hh_l0", 3, 3)], ["a recurrent head"]),
            ("NewEagle1", "native", [no_tensor("midlayer.hidden_norm.weight")], ["use another draft"]),
            ("NewBin", "dflash", [lambda draft: draft.tensors.clear()], ['["DFlashDraftModel"]']),
            ("Eagle3Speculator", "native", [], ['"speculators_model_type": "eagle3"']),
            ("KimiK3Eagle3DraftModel", "mla", [], ["no drafter of vLLM", "use another draft"]),
            ("LlamaForCausalLMEagle", "native", [], ["EAGLE-2", '"method": "eagle"', "plain vLLM"]),
            ("EagleMistralForCausalLM", "native", [], ["EAGLE-2", '"method": "eagle"', "plain vLLM"]),
            ("LlamaForCausalLMEagle3", "native", [as_eagle_1], EAGLE_1),
            ("LlamaForCausalLM", "native", [as_eagle_1], EAGLE_1),
            ("DFlashDraftModel", "native", [as_eagle_1], EAGLE_1),
            ("MedusaModel", "native", [], ["Medusa heads", '"method": "medusa"']),
        ]
    ),
    case(
        "architecture_is_served", "speculators_on_gemma", "speculators",
        key(f"{LAYER}.model_type", "gemma"),
        words=("speculators_model_type", "('eagle3', 'gemma')", "eagle3 on llama"),
    ),
    case(
        "architecture_is_served", "speculators_of_a_new_kind", "speculators",
        key("speculators_model_type", "medusa"),
        words=("('medusa', 'llama')", "dflash on qwen3", "vLLM reads no speculators draft of this type"),
    ),
    case(
        "architecture_is_served", "speculators_of_mtp", "speculators",
        key("speculators_model_type", "mtp"), words=("('mtp', 'llama')", "multi-token-prediction"),
    ),
    case(
        "model_type_is_readable", "taken_for_mtp", "mla", key("model_type", "deepseek_v3"),
        words=("model_type", "'deepseek_v3'", "multi-token-prediction", '"kimi_k2"'),
    ),
    case(
        "architecture_is_served", "eagle_1_by_its_method", "native", as_eagle_1,
        engine={"method": "eagle"}, words=("'LlamaForCausalLMEagle3'", *EAGLE_1),
    ),
    case(
        "method_fits_the_architecture", "eagle", "native", engine={"method": "eagle"},
        words=("method", "'eagle'", "'eagle3'", "'LlamaForCausalLMEagle3'"),
    ),
    case(
        "method_fits_the_architecture", "eagle3_for_dflash", "dflash", engine={"method": "eagle3"},
        words=("'eagle3'", "'dflash'", "'DFlashDraftModel'"),
    ),
    case(
        "method_fits_the_architecture", "dflash_for_a_plain_llama", "native",
        key("architectures", ["LlamaForCausalLM"]), engine={"method": "dflash"},
        words=("'dflash'", "'eagle3'", "'LlamaForCausalLM'"),
    ),
    case(
        "method_fits_the_architecture", "speculators", "speculators", engine={"method": "draft_model"},
        words=("'draft_model'", "'eagle3'"),
    ),
    case(
        "draft_vocabulary_has_a_drafter", "left_to_vllm", "native",
        key("architectures", ["K3DSparkModel"]), options={"draft_vocabulary": "ids.json"},
        words=("draft_vocabulary", "'ids.json'", "which plain vLLM loads"),
    ),
]
# fmt: on
