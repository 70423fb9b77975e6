# SPDX-License-Identifier: Apache-2.0
"""Rules about what a draft claims to be, before anything else is read of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_eagle_ext.draft import registry
from vllm_eagle_ext.draft.draft_config import format_of, published_architecture
from vllm_eagle_ext.draft.draft_files import DraftFiles
from vllm_eagle_ext.draft.findings import Problem, Problems, Severity, key_problem, rule
from vllm_eagle_ext.draft.foreign_drafts import (
    ANOTHER,
    EAGLE_1,
    EAGLE_1_OF_VLLM,
    REFUSED_ARCHITECTURES,
    SPECULATORS_CLASSES,
    UNREAD_TYPES,
    foreign_part,
    is_eagle_1,
    name_edit,
    own_architecture,
)
from vllm_eagle_ext.draft.spec import DraftRequest
from vllm_eagle_ext.draft.vocabulary import OPTION
from vllm_eagle_ext.errors import OptionsError
from vllm_eagle_ext.families.drafter_classes import Drafter, drafters

# Served by vLLM itself, under their own names and rules.
PASSED_THROUGH = frozenset(
    {
        "DFlash2BeamDraftModel", "DFlashLagunaForCausalLM",
        "DFlashMuseGlimmerAssistantModel", "DFlashQwen3XPressModel", "DSparkDraftModel",
        "DSparkV41DraftModel", "Gemma4DSparkModel", "K3DSparkModel", "LiLiCorrDraftModel",
        "MuseGlimmerAssistantModel", "Qwen3OmniDSparkModel",
    }
)  # fmt: skip
# vLLM looks for a DSpark draft of any other name inside the target, and takes these types for such.
IN_THE_TARGET, IN_TARGETS_OF = "DSparkDraftModel", frozenset({"deepseek_v4", "deepseek_v41"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftClaim:
    files: DraftFiles
    flat: Mapping[str, Any]
    request: DraftRequest
    drafter: Drafter | None

    @property
    def architecture(self) -> str:
        return published_architecture(self.files.config)

    @property
    def speculators_type(self) -> object:
        return self.files.config.get("speculators_model_type")

    @property
    def is_misnamed_eagle_1(self) -> bool:
        """Tell whether its name or method makes another of an EAGLE-1 draft."""
        is_named = self.architecture in registry.PLAIN_MODELS and self.request.method == "eagle"
        return not is_named and self.drafter is not None and is_eagle_1(self.files)

    @property
    def is_passed_through(self) -> bool:
        type_ = self.speculators_type
        if type_ is not None:
            left = {name for drafter in drafters() for name in drafter.excluded_architectures}
            return self.architecture in left
        if self.drafter is not None:
            return False
        if self.request.method not in (None, *registry.methods()):
            return True
        prefixes = ("", *_prefixes().values())
        known_here = any(f"{prefix}{self.architecture}" in PASSED_THROUGH for prefix in prefixes)
        return known_here or self._as_vllm_names_it() in self.request.registered

    def _as_vllm_names_it(self) -> str:
        """Put the method's name before an architecture that does not show it, as vLLM does."""
        prefix = _prefixes().get(self.request.method or "", "")
        shown = self.architecture.startswith(prefix) or self.architecture.endswith(prefix)
        return self.architecture if shown else prefix + self.architecture


def _prefixes() -> dict[str, str]:
    """Return method -> vLLM's name for it in architectures."""
    return {each.method: each.prefix for each in drafters() if not each.uses_vllm_class}


# `inspection` applies these three to what it found out.
@rule(Severity.ERROR)
def config_is_well_formed(wrong_values: Sequence[Problem]) -> Problems:
    """Sizes are there, valid and consistent."""
    return wrong_values


@rule(Severity.ERROR)
def aux_layer_ids_exist(wrong_ids: Sequence[Problem]) -> Problems:
    """Aux layer ids name different layers of the target."""
    return wrong_ids


@rule(Severity.ERROR)
def target_is_the_drafts_own(model: str, signs: Sequence[str]) -> Problems:
    """At most one of hidden size, vocabulary and depth differs from the target's.

    Where a start would go on, `strict: false` makes it a warning.
    """
    if len(signs) > 1:
        yield Problem(
            field=f"target of the draft {model!r}",
            value="probably another one",
            allowed=f"the target that the draft was trained for. Its config.json expects "
            f"{', '.join(signs)}",
            remedy="name that target, or a draft that was trained for this one",
        )


@rule(Severity.ERROR)
def speculators_type_is_named(draft: DraftClaim) -> Problems:
    """A config with `speculators_config` has `speculators_model_type`."""
    if draft.speculators_type is None and format_of(draft.files.config) == "speculators":
        *others, last = dict.fromkeys(type_ for type_, _ in registry.speculators())
        yield key_problem(
            "speculators_model_type",
            None,
            allowed=f"{', '.join(others)} or {last}",
            remedy="add the type to config.json: the kind of draft that speculators trained",
        )


@rule(Severity.ERROR)
def architecture_is_served(draft: DraftClaim) -> Problems:
    """`architectures` names one that a drafter serves."""
    if draft.is_misnamed_eagle_1:
        allowed = "what its tensors are"
        yield key_problem("architectures", draft.architecture, allowed=allowed, remedy=EAGLE_1)
    if draft.is_misnamed_eagle_1 or draft.drafter or draft.is_passed_through:
        return
    if draft.speculators_type is not None:
        layer, name = draft.flat.get("model_type"), str(draft.speculators_type)
        why = UNREAD_TYPES.get(name, "vLLM reads no speculators draft of this type")
        if name in {kind for kind, _ in registry.speculators()}:
            why = f"no drafter computes {name} on such layers"
        yield Problem(
            field="speculators_model_type and model_type of its transformer_layer_config",
            value=(draft.speculators_type, layer),
            allowed=", ".join(f"{kind} on {type_}" for kind, type_ in sorted(registry.speculators())),
            remedy=f"{why}; {ANOTHER}",
        )
    elif format_of(draft.files.config) == "published":
        yield key_problem(
            "architectures",
            draft.architecture or draft.files.config.get("architectures"),
            allowed=", ".join(sorted(registry.published())),
            remedy=_why_not_this_name(draft.architecture, draft.files),
        )


def _why_not_this_name(name: str, files: DraftFiles) -> str:
    """Say what keeps a draft from being served: its kind, or only its name."""
    is_eagle1 = name.startswith("Eagle") and not name.startswith("Eagle3")
    if reason := EAGLE_1_OF_VLLM if is_eagle1 else REFUSED_ARCHITECTURES.get(name):
        joined = ", or" if '"method"' in reason else ";"
        return f"{reason}{joined} {ANOTHER}"
    if type_ := SPECULATORS_CLASSES.get(name):
        return f'edit config.json: "speculators_model_type": "{type_}", as speculators writes it'
    if reason := foreign_part(files.tensors):
        return f"no drafter of that name is known; {reason}"
    if fitting := own_architecture(files):
        return (
            f"no drafter of that name is known, but the tensors are those of another: if its trainer "
            f"computes the same, {name_edit(fitting)}; otherwise {ANOTHER}"
        )
    return f"no drafter of that name is known; {ANOTHER}"


@rule(Severity.ERROR)
def dspark_is_no_part_of_the_target(draft: DraftClaim) -> Problems:
    """Outside DeepSeek-V4 `DSparkDraftModel` needs `model_type: "qwen3"`."""
    model_type = draft.files.config.get("model_type")
    is_named_so = draft.architecture == IN_THE_TARGET and draft.speculators_type is None
    if is_named_so and draft.drafter is None and str(model_type) not in IN_TARGETS_OF:
        yield Problem(
            field=f"model_type of the draft's config.json with {IN_THE_TARGET!r}",
            value=model_type,
            allowed="'qwen3': vLLM takes other drafts of this name for a part of a DeepSeek-V4 target",
            remedy='if its layers are those of Qwen3, edit config.json: "model_type": "qwen3"; if not, '
            "no drafter of vLLM computes it",
        )


@rule(Severity.ERROR)
def model_type_is_readable(draft: DraftClaim) -> Problems:
    """`model_type` is none of DeepSeek's."""
    model_type = draft.files.config.get("model_type")
    if draft.speculators_type is not None and model_type in (None, "speculators"):
        model_type = draft.flat.get("model_type")  # of the layer
    if draft.drafter and isinstance(model_type, str) and model_type.startswith("deepseek_v"):
        yield key_problem(
            "model_type",
            model_type,
            allowed="another one: vLLM takes a draft of this type for a multi-token-prediction head",
            remedy=f'edit config.json: "model_type": "{draft.drafter.backbone.model_type}" reads the '
            "same keys",
        )


@rule(Severity.ERROR)
def method_fits_the_architecture(draft: DraftClaim) -> Problems:
    """`method` is that of the draft's architecture."""
    wanted, given = draft.drafter and draft.drafter.method, draft.request.method
    if wanted is None or given is None or given == wanted or draft.is_misnamed_eagle_1:
        return
    is_a_draft = draft.architecture not in registry.PLAIN_MODELS or draft.speculators_type is not None
    if is_a_draft or given in registry.methods():
        yield Problem(
            field="speculative_config.method",
            value=given,
            allowed=f"{wanted!r} for a draft of architecture {draft.architecture!r}",
            remedy=f'write "method": "{wanted}"',
        )


@rule(Severity.ERROR, error=OptionsError)
def draft_vocabulary_has_a_drafter(draft: DraftClaim) -> Problems:
    """The option `draft_vocabulary` is for drafts that this package serves."""
    if draft.is_passed_through and draft.request.options.draft_vocabulary is not None:
        yield Problem(
            field=OPTION,
            value=draft.request.options.draft_vocabulary,
            allowed=f"no value with {draft.architecture!r}, which plain vLLM loads",
            remedy="leave the option out",
        )
