# SPDX-License-Identifier: Apache-2.0
"""Rules about the target, as vLLM serves it, and what a draft asks of it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from vllm_eagle_ext.draft import Case
from vllm_eagle_ext.draft.findings import Problem, Problems, Severity, rule
from vllm_eagle_ext.errors import SpeculativeConfigError, UnsupportedTargetError
from vllm_eagle_ext.memory.parameter_count import head_read
from vllm_eagle_ext.start.rules.vllm_config import architecture_of, runner_of, text_of

# On vLLM's DeepSeek-V2 layers, which add a residual that is not there yet at layer 0's input (0.32).
WITHOUT_EMBEDDINGS = frozenset(
    {
        "DeepseekForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM",
        "KimiK25ForConditionalGeneration", "KimiVLForConditionalGeneration",
        "MistralLarge3ForCausalLM",
    }
)  # fmt: skip
# Whose class has the interface for whatever language model the config names.
_HOLDING_ANY = frozenset(
    {
        "LlavaForConditionalGeneration", "Mistral3ForConditionalGeneration",
        "PixtralForConditionalGeneration",
    }
)  # fmt: skip
_MUCH_OF_A_STEP = 0.1  # of the target
# Whose class takes the config's `image_token_id` for it, before the draft is loaded.
IMAGE_TOKEN_ID_CLASSES = ("InternS2MobiusForConditionalGeneration",)


@rule(Severity.ERROR, error=UnsupportedTargetError)
def target_hands_out_its_states(case: Case, config: Any) -> Problems:
    """The target's class hands out the states that the draft reads."""
    if case.spec.fuses_aux_states and not target_supports_eagle3(config):
        from vllm_eagle_ext import compat

        yield Problem(
            field="architecture of the target",
            value=architecture_of(config),
            allowed="one whose class hands out the hidden states of its layers, which this draft reads; "
            f"the class in vLLM {compat.vllm_version()} does not (it lacks SupportsEagle3)",
            remedy="--model-impl transformers if transformers has the model: that class hands them out. "
            "Else serve the target without this draft",
        )


@rule(Severity.ERROR, error=UnsupportedTargetError)
def images_are_known_to_v1(case: Case, config: Any) -> Problems:
    """V1 finds the target's image token. V2 needs none."""
    if runner_of(config) != "v1":
        return
    served_by = class_with_images(config)
    if served_by in (None, *IMAGE_TOKEN_ID_CLASSES, *classes_known_to_v1()):
        return
    # Which V1 reads of those that it knows.
    token_id = getattr(config.model_config.hf_config, "image_token_id", None)
    name_it = f"--hf-overrides '{{\"image_token_index\": {token_id}}}', "
    yield Problem(
        field=f"class that serves the target's {architecture_of(config)}",
        value=served_by,
        allowed="with a draft on vLLM's V1 runner, a target without images, one whose config has "
        "image_token_index, or one that V1 knows by name: " + ", ".join(classes_known_to_v1()),
        remedy=(name_it if type(token_id) is int else "")
        + "VLLM_USE_V2_MODEL_RUNNER=1 where there is Triton, or serve the target without a draft",
    )


@rule(Severity.ERROR, error=UnsupportedTargetError)
def target_hands_out_its_embeddings(case: Case, config: Any) -> Problems:
    """The target hands out its embeddings, if the draft reads them as aux layer 0."""
    spec, architecture = case.spec, architecture_of(config)
    if 0 in spec.aux_layers.layer_ids and architecture in WITHOUT_EMBEDDINGS:
        yield Problem(
            field=f"target layers whose input the draft {spec.model!r} reads of a {architecture}",
            value=list(spec.aux_layers.layer_ids),
            allowed="1 and above: vLLM's layers of this target fail at layer 0's input, the embeddings",
            remedy="if the ids were understood wrongly, set the option aux_layers",
        )


@rule(Severity.ERROR, error=SpeculativeConfigError)
def padding_is_cut_off(case: Case, config: Any) -> Problems:
    """`use_local_argmax_reduction` is off for a shared head with padding."""
    key = "use_local_argmax_reduction"
    keeps = case.spec.head == "shared" and case.spec.kept_ids is None
    if case.target.padding and keeps and config.speculative_config.use_local_argmax_reduction:
        yield Problem(
            field=f"speculative_config.{key}",
            value=True,
            allowed=f"false for this draft: the target's head has {case.target.padding} rows after its "
            "vocabulary, which vLLM leaves out of whole logits only",
            remedy="leave the key out",
        )


@rule(Severity.NOTE)
def draft_head_reads_little(case: Case, config: Any) -> Problems:
    """The draft's head is at most a tenth of what the target reads in a step."""
    spec = case.spec
    at_once = spec.family.drafts_in_parallel
    read = head_read(spec.head_bytes, text_of(config), at_once=at_once)
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


def target_supports_eagle3(config: Any) -> bool:
    """Ask the class that serves a target for vLLM's interface.

    vLLM's own classes are read, not imported. A target that replays is asked for as vLLM's, from which
    its class comes.
    """
    target, architecture = config.model_config, architecture_of(config)
    inner = getattr(target.hf_text_config, "architectures", None)
    if architecture in _HOLDING_ANY and isinstance(inner, list) and inner:
        architecture = str(inner[0])
    # A class that vLLM does not know is another package's, or vLLM has its own words for it.
    entry = target.registry.models.get(architecture)
    module = str(getattr(entry, "module_name", ""))
    if module.startswith("vllm."):
        return has_interface(entry.class_name)
    from vllm.model_executor.models.interfaces import supports_eagle3

    served_by, _ = target.registry.resolve_model_cls(_architectures(config), target)
    return bool(supports_eagle3(served_by))


def _architectures(config: Any) -> list[str]:
    """Return those of the target, in place of ours where it replays."""
    published, model = architecture_of(config), config.model_config
    return list(model.architectures) if model.architecture == published else [published]


def class_with_images(config: Any) -> str | None:
    """Name vLLM's class of a target with images whose config does not name their token; None: none.

    Several architectures may share a class, or have one for another runner.
    """
    target = config.model_config
    if not target.is_multimodal_model or hasattr(target.hf_config, "image_token_index"):
        return None
    info, _ = target.registry.inspect_model_cls(_architectures(config), target)
    return str(info.architecture)


def has_interface(name: str, below: frozenset[str] = frozenset()) -> bool:
    """Tell whether a class of vLLM's models, or one that it comes from, names `SupportsEagle3`.

    An import would tell too, but may start CUDA. Where a platform has a class of its own, one that has
    the interface counts for all.
    """
    bases = () if name in below else _bases().get(name, ())
    return name == "SupportsEagle3" or any(has_interface(base, below | {name}) for base in bases)


@cache
def _bases() -> Mapping[str, set[str]]:
    """Read in vLLM's source what each class of a model comes from, and other names of classes."""
    bases: dict[str, set[str]] = defaultdict(set)
    for path in (*_vllm().glob("model_executor/models/**/*.py"), *_vllm().glob("models/**/*.py")):
        source = path.read_text(encoding="utf-8")
        for name, parents in re.findall(r"class (\w+)\(([^)]*)\)", source):
            bases[name].update(re.findall(r"\w+", parents))
        for line in source.splitlines():
            words = line.strip(" ,").split()
            if len(words) == 3 and words[1] == "=":
                bases[words[0]].add(words[2])
            elif len(words) > 2 and words[-2] == "as":
                bases[words[-1]].add(words[-3])
    return bases


@cache
def classes_known_to_v1() -> tuple[str, ...]:
    """Read which classes vLLM's V1 proposer compares with a target's, to find its image token."""
    proposer = (_vllm() / "v1/spec_decode/llm_base_proposer.py").read_text(encoding="utf-8")
    names = {
        constant.value
        for node in ast.walk(ast.parse(proposer))
        if isinstance(node, ast.Compare) and "get_model_name(" in ast.unparse(node.left)
        for constant in ast.walk(node)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
    }
    return tuple(sorted(names))


def _vllm() -> Path:
    import vllm

    return Path(vllm.__file__).parent
