# SPDX-License-Identifier: Apache-2.0
"""Rules about the target, as vLLM serves it, and what a draft asks of it."""

from __future__ import annotations

import os
from collections.abc import Iterable

from vllm_eagle_ext.checkpoint import Case
from vllm_eagle_ext.checkpoint.findings import Problem, Severity, rule
from vllm_eagle_ext.checkpoint.rope_config import read_rope, rope_problems
from vllm_eagle_ext.engine import EngineFacts
from vllm_eagle_ext.errors import SpeculativeConfigError, UnsupportedTargetError
from vllm_eagle_ext.memory.parameter_count import head_read

_ANY_LENGTH = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
# On vLLM's DeepSeek-V2 layers, which add a residual that is not there yet at layer 0's input (0.32).
WITHOUT_EMBEDDINGS = frozenset(
    {
        "DeepseekForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM",
        "KimiK25ForConditionalGeneration", "KimiVLForConditionalGeneration",
        "MistralLarge3ForCausalLM",
    }
)  # fmt: skip
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

_MUCH_OF_A_STEP = 0.1  # of the target
# Whose class takes the config's `image_token_id` for it, before the draft is loaded.
STATING_IT = ("InternS2MobiusForConditionalGeneration",)


@rule(Severity.ERROR, error=SpeculativeConfigError)
def the_target_is_as_long(engine: EngineFacts) -> Iterable[Problem]:
    """Refuse more positions than the target has, by vLLM's rule.

    vLLM itself judges a rope that is stretched, or one per layer type.
    """
    text, asked = engine.text, engine.max_model_len
    most, own = text.get("max_position_embeddings"), text.get("model_max_length")
    if asked is None or type(most) is not int or rope_problems(text):
        return
    allowed = max(most, own) if type(own) is int else most
    is_left = read_rope(text).factor or os.environ.get(_ANY_LENGTH) in ("1", "true")
    if asked > allowed and not is_left:
        yield Problem(
            field="--max-model-len",
            value=asked,
            allowed=f"up to {allowed}, the positions of the target",
            remedy=f"ask for {allowed} or fewer: vLLM refuses more without {_ANY_LENGTH}=1, with which "
            "the target may answer with nonsense beyond them",
        )


@rule(Severity.ERROR, error=UnsupportedTargetError)
def target_hands_out_its_states(case: Case) -> Iterable[Problem]:
    """Refuse targets whose class lacks the interface, which vLLM notices once it has the weights."""
    engine = case.engine
    if not engine.hands_out_states and case.spec.fuses_aux_states:
        yield Problem(
            field="architecture of the target",
            value=engine.architecture,
            allowed="one whose class hands out the hidden states of its layers, which this draft reads; "
            f"the class in vLLM {engine.release} does not (it lacks SupportsEagle3)",
            remedy="--model-impl transformers if transformers has the model: that class hands them out. "
            "Else serve the target without this draft",
        )


@rule(Severity.ERROR, is_guess=True, error=UnsupportedTargetError)
def images_are_known_to_v1(case: Case) -> Iterable[Problem]:
    """Refuse targets whose image token vLLM's V1 runner cannot find: it looks it up for every draft.

    V2 drafts for any target, from its text. It is a guess where vLLM's class, whose name decides, is not
    known: it may serve several architectures.
    """
    engine = case.engine
    if engine.runner != "v1" or engine.image_class in (None, *NAMED, *STATING_IT):
        return
    stated = engine.image_token_id  # which V1 reads of those that it knows
    name_it = f"--hf-overrides '{{\"image_token_index\": {stated}}}', "
    yield Problem(
        field=f"class that serves the target's {engine.architecture}",
        value=engine.image_class,
        allowed="with a draft on vLLM's V1 runner, a target without images, one whose config has "
        "image_token_index, or one that V1 knows by name: " + ", ".join(NAMED),
        remedy=(name_it if type(stated) is int else "")
        + "VLLM_USE_V2_MODEL_RUNNER=1 where there is Triton, or serve the target without a draft",
    )


@rule(Severity.ERROR, error=UnsupportedTargetError)
def target_hands_out_its_embeddings(case: Case) -> Iterable[Problem]:
    """Refuse a draft that reads the embeddings of a target whose first layer fails there."""
    spec, architecture = case.spec, case.engine.architecture
    if 0 in spec.aux_layers.layer_ids and architecture in WITHOUT_EMBEDDINGS:
        yield Problem(
            field=f"target layers whose input the draft {spec.model!r} reads of a {architecture}",
            value=list(spec.aux_layers.layer_ids),
            allowed="1 and above: vLLM's layers of this target fail at layer 0's input, the embeddings",
            remedy="if the ids were understood wrongly, set the option aux_layers",
        )


@rule(Severity.ERROR, error=SpeculativeConfigError)
def padding_is_cut_off(case: Case) -> Iterable[Problem]:
    """Refuse the shorter way to the likeliest token for a shared head with padding, which it keeps."""
    key = "use_local_argmax_reduction"
    keeps = case.spec.head == "shared" and case.spec.kept_ids is None
    if case.target.padding and keeps and case.engine.speculative.get(key):
        yield Problem(
            field=f"speculative_config.{key}",
            value=True,
            allowed=f"false for this draft: the target's head has {case.target.padding} rows after its "
            "vocabulary, which vLLM leaves out of whole logits only",
            remedy="leave the key out",
        )


@rule(Severity.NOTE)
def draft_head_reads_little(case: Case) -> Iterable[Problem]:
    """Tell where a head is a good part of what the target reads in a step."""
    spec, engine = case.spec, case.engine
    at_once = spec.family.drafts_in_parallel
    read = head_read(spec.head_bytes, engine.text, at_once=at_once)
    if read is None or at_once or read.share <= _MUCH_OF_A_STEP:
        return
    quantise = '"draft_lm_head_quantization": "fp8" in the speculative config (vLLM 0.33, V2 runner)'
    is_shared = spec.head == "shared"
    shorten = "the option draft_vocabulary (docs/draft_vocabulary.md)"
    yield Problem(
        field="output head that the draft reads",
        value=str(read),
        allowed="up to a tenth for a head that costs little",
        remedy=f"try {shorten}, or {quantise}" if is_shared else f"try {shorten}",
    )


RULES = (
    padding_is_cut_off,
    target_hands_out_its_states,
    images_are_known_to_v1,
    target_hands_out_its_embeddings,
    draft_head_reads_little,
)
