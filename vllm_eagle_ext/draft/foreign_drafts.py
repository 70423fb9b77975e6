# SPDX-License-Identifier: Apache-2.0
"""Kinds of drafts that trainers write and no drafter here computes, by name and by their tensors.

Sources: the code of NVIDIA NeMo AutoModel, Model Optimizer, SpecForge, AngelSlim, DeepSpec, speculators,
Medusa, Hydra and AMD's PARD, and vLLM's registry of models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vllm_eagle_ext.draft.draft_files import DraftFiles

ANOTHER = "use another draft"
EAGLE_1_OF_VLLM = 'it is an EAGLE-1 or EAGLE-2 draft, which plain vLLM serves: write "method": "eagle"'
EAGLE_1 = f'{EAGLE_1_OF_VLLM} and, in config.json, "architectures": ["LlamaForCausalLM"]'
_MEDUSA = 'it has Medusa heads, which vLLM serves by a class of its own: write "method": "medusa"'
_MTP = (
    "it is a multi-token-prediction head, which vLLM serves as a part of its target's files, with "
    '"method": "mtp"'
)
# Architectures that are not what their names promise, or that no drafter computes, whatever it shares.
_UNCOMPUTED = (
    "LlamaForCausalLMEagle3Gated", "LlamaForCausalLMEagle3Deep", "DominoDraftModel",
    "QwenDFlareDraftModel", "KimiK3Eagle3DraftModel", "KimiK3DFlashDraftModel", "KimiK3DSparkModel",
    "DeepseekV4DSparkModel", "Glm5_2DSparkModel", "MiniMaxM3DSparkModel", "Gemma4Eagle3DraftModel",
    "Gemma4Eagle3Model", "LlamaEagleDraftModel", "VispecDraftModel", "MultimodalEagleDraftModel",
)  # fmt: skip
REFUSED_ARCHITECTURES: Mapping[str, str] = {
    **dict.fromkeys(_UNCOMPUTED, "no drafter of vLLM computes its layers or its heads"),
    "LlamaForCausalLMEagle": EAGLE_1,
    **dict.fromkeys(("MedusaModel", "MedusaForCausalLM", "MedusaLlamaForCausalLM"), _MEDUSA),
    "MTPDraftModel": _MTP,
}

# Speculators' classes, which its configs name next to a type.
SPECULATORS_CLASSES: Mapping[str, str] = {
    "DFlashSpeculator": "dflash",
    "DSparkSpeculator": "dspark",
    "Eagle3DraftModel": "eagle3",
    "Eagle3Speculator": "eagle3",
    "PEagleSpeculator": "peagle",
}
# Of speculators_model_type: vLLM reads drafts of this format of no other type than those served here.
UNREAD_TYPES: Mapping[str, str] = {
    "eagle": "vLLM reads no EAGLE-1 draft of the speculators format",
    "mtp": "vLLM reads no multi-token-prediction head of the speculators format",
}

# What a tensor's name tells, and what the draft therefore has. The first that fits counts.
_FOREIGN_PARTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), what)
    for pattern, what in (
        (r"parallel_draft_heads|medusa", "Medusa heads"),
        (r"hydra|grounded_heads", "Hydra heads"),
        (r"^(prefix_gru|embed_proj)\.|_gru\.|lstm", "a recurrent head (Domino)"),
        (r"layer_fusion_weights|[kv]_proj_target", "a mix of aux states for each layer (DFlare)"),
        (r"^(img_fc|image|visual|vision)|image_adaptor", "parts that read images"),
        (r"(^|\.)(eh_proj|enorm|hnorm|shared_head)\.|^mtp\.", "parts of a multi-token-prediction head"),
        (r"\.(experts|shared_experts?|block_sparse_moe)\.|\.mlp\.(gate|router)\.", "experts"),
        (r"(pre|post)_feedforward_layernorm|post_self_attn_layernorm", "norms after attention and MLP"),
        (r"\.indexer\.|\.wkv\.|\.wo_[ab]\.|\.compressor\.", "sparse attention"),
        (r"self_attn\.sinks", "attention sinks of that name"),
        (r"self_attn\.(g_proj|gate|gate_proj|output_gate)\.", "a gate on its attention"),
        (r"linear_attn\.|\.mixer\.|\.conv1d\.|A_log|dt_bias", "recurrent layers"),
        (r"^speculator\.|^(emb|proj|ln)\.\d", "the layers of an MLP speculator"),
        (r"cross_attn|encoder_attn", "cross attention"),
        (r"depth_(gate|embed)|step_embed", "parts that depend on the drafted position"),
    )
)
_OF_THE_TARGET, _LORA = re.compile(r"^base_model\."), re.compile(r"lora_|adapter")


def foreign_part(names: Iterable[str]) -> str | None:
    """Say what to do with a draft that has such tensors; None where their kind is not known.

    Args:
        names: canonical ones.
    """
    names = list(names)
    if any(map(_OF_THE_TARGET.search, names)):
        return (
            "they are an adapter of the target: merge it into the target, for which the draft was "
            "trained, and move its file out of the draft's folder"
        )
    if any(map(_LORA.search, names)):
        return "they are an adapter of the draft: merge it into the draft's weights"
    what = next((what for pattern, what in _FOREIGN_PARTS if any(map(pattern.search, names))), None)
    return what and f"no drafter of vLLM computes {what} in such a draft: {ANOTHER}"


def is_eagle_1(files: DraftFiles) -> bool:
    """Tell an EAGLE-1 or EAGLE-2 draft: fc reads the embedding and one state, and nothing norms them."""
    names = ("fc.weight", "layers.0.self_attn.q_proj.weight")
    fc, query = (files.tensors[name].shape if name in files.tensors else () for name in names)
    fuses = len(fc) == len(query) == 2 and fc == (query[1], 2 * query[1])
    norms = ("hidden_norm.weight", "layers.0.input_layernorm.weight")
    return fuses and not any(name.endswith(norms) for name in files.tensors)


def own_architecture(files: DraftFiles) -> str | None:
    """Return the name whose drafter has a draft's tensors; None where no draft's parts are there."""
    names = files.tensors
    if not names:
        return "DFlashDraftModel" if isinstance(files.config.get("dflash_config"), Mapping) else None
    attention = "layers.0.self_attn."
    parts = {name.removeprefix(attention).partition(".")[0] for name in names if attention in name}
    is_latent = "kv_a_proj_with_mqa" in parts
    if "hidden_norm.weight" in names and not is_latent:
        if any(name.startswith("candidate_selector.") for name in names):
            return "DFlash2DraftModel"
        return "Qwen3DSparkModel" if "markov_head.markov_w1.weight" in names else "DFlashDraftModel"
    if "layers.0.hidden_norm.weight" not in names:
        return None
    if is_latent:
        return "Eagle3DeepseekV3ForCausalLM"
    return "Eagle3Qwen3ForCausalLM" if "q_norm" in parts else "LlamaForCausalLMEagle3"


def name_edit(architecture: str) -> str:
    return f'edit config.json: "architectures": ["{architecture}"]'
