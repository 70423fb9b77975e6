# SPDX-License-Identifier: Apache-2.0
"""Looks at a draft as a whole: what it is, every finding of every rule, and which follow from others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm_eagle_ext.draft.attention import asked_window
from vllm_eagle_ext.draft.draft_config import DraftConfig, flatten, format_of, parse_config, read_flag
from vllm_eagle_ext.draft.draft_files import DraftFiles
from vllm_eagle_ext.draft.findings import Finding, Problem, Severity, apply_rules, relax
from vllm_eagle_ext.draft.layer_ids import resolve_aux_layers
from vllm_eagle_ext.draft.read_spec import (
    build_spec,
    family_of,
    trained_length,
    with_own_depth,
    with_padding_apart,
)
from vllm_eagle_ext.draft.registry import drafter_of
from vllm_eagle_ext.draft.rules import EARLY_RULES, rules_for
from vllm_eagle_ext.draft.rules.early import (
    DraftClaim,
    aux_layer_ids_exist,
    config_is_well_formed,
    target_is_the_drafts_own,
)
from vllm_eagle_ext.draft.silent_keys import without_nulls
from vllm_eagle_ext.draft.spec import NO_AUX_LAYERS, AuxLayers, Case, DraftRequest, DraftSpec, Override
from vllm_eagle_ext.draft.target_facts import TargetFacts
from vllm_eagle_ext.draft.vocabulary import read_vocabulary_file
from vllm_eagle_ext.families.drafter_classes import Drafter


@dataclass(frozen=True, slots=True)
class Inspection:
    """`case` is None for a draft that is passed through to vLLM, or too broken to say what it is."""

    case: Case | None
    findings: tuple[Finding, ...]

    @property
    def spec(self) -> DraftSpec | None:
        return self.case.spec if self.case else None

    @property
    def errors(self) -> list[Finding]:
        return [f for f in self.findings if f.severity == Severity.ERROR]

    @property
    def causes(self) -> list[Finding]:
        """Return the errors that follow from no other; if there are errors, some do."""
        return [finding for finding in self.errors if finding.follows_from is None]

    @property
    def warnings(self) -> list[Finding]:
        return [f for f in self.findings if f.severity == Severity.WARNING]

    @property
    def is_passed_through(self) -> bool:
        return self.case is None and not self.errors


def inspect_draft(files: DraftFiles, target: TargetFacts, request: DraftRequest) -> Inspection:
    """Apply the rules of drafts. `strict: false` makes warnings of errors that an engine starts with."""
    inspection = _inspect(files, target, request)
    if request.options.strict:
        return inspection
    return Inspection(inspection.case, tuple(relax(inspection.findings)))


def _inspect(files: DraftFiles, target: TargetFacts, request: DraftRequest) -> Inspection:
    # What the draft claims to be.
    flat, options = flatten(without_nulls(files.config)), request.options
    drafter = drafter_of(files.config, flat.get("model_type"))
    flat = with_own_depth(files, flat, drafter, target.num_layers)
    claim = DraftClaim(files=files, flat=flat, request=request, drafter=drafter)
    early = tuple(apply_rules(EARLY_RULES, draft=claim))
    refused = any(finding.severity == Severity.ERROR for finding in early)
    if refused or drafter is None or request.method not in (None, drafter.method):
        return Inspection(None, early)
    # Its config's values and its layers, without which nothing else can be said.
    # speculators' as in the file: `parse_config` judges the root's architectures, then flattens it.
    config = parse_config(flat if format_of(files.config) == "published" else files.config)
    if isinstance(config, list):
        return Inspection(None, tuple(apply_rules((config_is_well_formed,), wrong_values=config)))
    aux_layers = _aux_layers(flat, drafter, target, options.aux_layers)
    if isinstance(aux_layers, list):
        ids, errors = aux_layers[0].value, apply_rules((aux_layer_ids_exist,), wrong_ids=aux_layers)
        is_list = isinstance(ids, list) and all(type(layer) is int for layer in ids)
        layer_ids: Any = ids if is_list else []  # wrong ones show the depth of its own target
        return Inspection(None, mark_consequences(errors, files.model, config, target, layer_ids))
    # What it is, with this target and these options.
    unpadded = with_padding_apart(files, config, target)
    window = asked_window(options.draft_window, trained_length(flat, config), request.max_model_len)
    spec = build_spec(files, flat, config, drafter, unpadded, aux_layers, options, window)
    if options.draft_vocabulary is not None:
        spec = replace(spec, kept_ids=read_vocabulary_file(options.draft_vocabulary))
    expected = spec.family.tensors(spec, config, unpadded.vocab_size)
    case = Case(
        files=files, flat=flat, config=config, spec=spec, expected=expected, target=unpadded,
        request=request,
    )  # fmt: skip
    # What the rules for its kinds say of all that.
    late = apply_rules(rules_for(spec.family), case=case)
    layer_ids = spec.aux_layers.layer_ids
    return Inspection(case, mark_consequences([*early, *late], files.model, config, target, layer_ids))


def _aux_layers(
    flat: Mapping[str, Any], drafter: Drafter, target: TargetFacts, override: Override
) -> AuxLayers | list[Problem]:
    fuses = read_flag(flat, "use_aux_hidden_state", default=True)
    family = family_of(flat, drafter)
    if family.runs_without_aux_states and not fuses:
        return NO_AUX_LAYERS
    return resolve_aux_layers(
        flat,
        num_target_layers=target.num_layers,
        convention=family.id_convention,
        is_speculators=format_of(flat) == "speculators",
        override=override,
    )


# Errors that a wrong target by itself may cause; without one of them a draft is not called another's.
_OF_THE_PAIR = frozenset(
    {
        "aux_layer_ids_exist", "draft_vocabulary_fits", "narrow_vocabulary_is_padded",
        "target_depth_fits", "target_width_fits", "tokenizers_agree",
    }
)  # fmt: skip
# Rule -> rules whose errors follow from its.
CONSEQUENCES: Mapping[str, frozenset[str]] = {
    "draft_is_no_plain_model": frozenset(
        {
            "attention_is_not_narrowed", "fc_reads_every_aux_layer", "tensor_shapes_fit",
            "tensors_are_complete", "tensors_are_expected",
        }
    ),
    "target_width_fits": frozenset(
        {
            "attention_is_not_narrowed", "embeddings_can_be_shared", "fc_reads_every_aux_layer",
            "gate_matches_its_flag", "scales_fit_their_weights", "tensor_shapes_fit",
        }
    ),
    "draft_vocabulary_fits": frozenset(
        {
            "d2t_agrees_with_t2d", "d2t_is_a_map", "d2t_present_iff_reduced", "head_is_present",
            "mask_token_is_in_the_vocabulary", "tensor_shapes_fit",
        }
    ),
}  # fmt: skip


def mark_consequences(
    findings: Sequence[Finding], model: str, config: DraftConfig, target: TargetFacts,
    layer_ids: Sequence[int],
) -> tuple[Finding, ...]:  # fmt: skip
    """Return the findings, each error that follows from another marked with that one's rule.

    Args:
        layer_ids: that the draft reads, valid or not.
    """
    errors = [finding for finding in findings if finding.severity == Severity.ERROR]
    of_the_pair = [finding for finding in errors if finding.rule in _OF_THE_PAIR]
    signs = list(_signs(config, target, layer_ids)) if of_the_pair else []
    if cause := next(iter(apply_rules((target_is_the_drafts_own,), model=model, signs=signs)), None):
        can_run = all(finding.can_run for finding in of_the_pair)
        causes = {cause.rule: {finding.rule for finding in errors}}
        return (replace(cause, can_run=can_run), *_marked(findings, causes))
    rules = {finding.rule for finding in errors}
    return _marked(findings, {rule: follow for rule, follow in CONSEQUENCES.items() if rule in rules})


def _marked(findings: Iterable[Finding], causes: Mapping[str, Iterable[str]]) -> tuple[Finding, ...]:
    cause_of = {rule: cause for cause, rules in causes.items() for rule in rules}
    return tuple(
        replace(finding, follows_from=cause_of.get(finding.rule))
        if finding.severity == Severity.ERROR
        else finding
        for finding in findings
    )


def _signs(config: DraftConfig, target: TargetFacts, layer_ids: Sequence[int]) -> Iterator[str]:
    """Yield what the draft says of its own target, and this one is not."""
    width = config.target_hidden_size or config.hidden_size
    if width != target.hidden_size:
        yield f"hidden size {width} (here {target.hidden_size})"
    if config.vocab_size != target.vocab_size:
        yield f"a vocabulary of {config.vocab_size} (here {target.vocab_size})"
    layers = target.num_layers
    counts = (config.num_target_layers, config.target_num_hidden_layers)
    depths = [depth for depth in counts if depth not in (None, layers, len(layer_ids))]
    if depths:
        yield f"{depths[0]} layers (here {layers})"
    elif layer_ids and max(layer_ids) > layers:
        yield f"at least {max(layer_ids)} layers (here {layers})"


def consequences(errors: Sequence[Finding]) -> str:
    """Say how many errors follow from those that are reported, or return "" if none does."""
    count = sum(finding.follows_from is not None for finding in errors)
    these = "it" if len(errors) == count + 1 else "them"
    return f"and {count} further error{'s follow' if count > 1 else ' follows'} from {these}" * bool(
        count
    )
