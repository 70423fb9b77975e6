# SPDX-License-Identifier: Apache-2.0
"""Looks at a draft as a whole: what it is, and every finding of every rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm_eagle_ext.draft.attention import asked_window
from vllm_eagle_ext.draft.aux_layers import NO_AUX_LAYERS, AuxLayers, Override
from vllm_eagle_ext.draft.case import Case, DraftRequest
from vllm_eagle_ext.draft.consequences import mark_consequences
from vllm_eagle_ext.draft.draft_config import flatten, format_of, parse_config
from vllm_eagle_ext.draft.draft_files import DraftFiles
from vllm_eagle_ext.draft.findings import Finding, Problem, Severity, apply_rules, relax
from vllm_eagle_ext.draft.flags import read_flag
from vllm_eagle_ext.draft.layer_ids import resolve_aux_layers
from vllm_eagle_ext.draft.read_spec import (
    build_spec,
    family_of,
    own_depth,
    trained_length,
    without_padding,
)
from vllm_eagle_ext.draft.registry import drafter_of
from vllm_eagle_ext.draft.rope_config import rope_problems
from vllm_eagle_ext.draft.rules import EARLY_RULES, rules_for
from vllm_eagle_ext.draft.rules.early import DraftClaim
from vllm_eagle_ext.draft.silent_keys import without_nulls
from vllm_eagle_ext.draft.spec import DraftSpec
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
        """Return the errors that follow from no other.

        The list is empty only where there is no error.
        """
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
    flat = own_depth(files, flat, drafter, target.num_layers)
    claim = DraftClaim(files=files, flat=flat, request=request, drafter=drafter)
    early = tuple(apply_rules(EARLY_RULES, draft=claim))
    refused = any(finding.severity == Severity.ERROR for finding in early)
    if refused or drafter is None or request.method not in (None, drafter.method):
        return Inspection(None, early)
    # Its config's values and its layers, without which nothing else can be said.
    config = parse_config(flat if format_of(files.config) == "published" else files.config)
    problems = [*(config if isinstance(config, list) else ()), *rope_problems(flat)]
    if problems or isinstance(config, list):
        return Inspection(None, _errors("config_is_well_formed", problems))
    layers = _aux_layers(flat, drafter, target, options.aux_layers)
    if isinstance(layers, list):
        ids, errors = layers[0].value, _errors("aux_layer_ids_exist", layers)
        is_list = isinstance(ids, list) and all(type(layer) is int for layer in ids)
        read: Any = ids if is_list else []  # had its target so many
        return Inspection(None, mark_consequences(errors, files.model, config, target, read))
    # What it is, with this target and these options.
    seen = without_padding(files, config, target)
    window = asked_window(options.draft_window, trained_length(flat, config), request.max_model_len)
    spec = build_spec(
        files, flat, config, drafter, seen, layers, options.norm_output, options.gate_layout, window
    )
    if options.draft_vocabulary is not None:
        spec = replace(spec, kept_ids=read_vocabulary_file(options.draft_vocabulary))
    expected = spec.family.tensors(spec, config, seen.vocab_size)
    case = Case(
        files=files, flat=flat, config=config, spec=spec, expected=expected, target=seen, request=request
    )  # fmt: skip
    # What the rules for its kinds say of all that.
    late = apply_rules(rules_for(spec.family), case=case)
    read = spec.aux_layers.layer_ids
    return Inspection(case, mark_consequences([*early, *late], files.model, config, target, read))


def _aux_layers(
    flat: Mapping[str, Any],
    drafter: Drafter,
    target: TargetFacts,
    override: Override,
) -> AuxLayers | list[Problem]:
    fuses = read_flag(flat, "use_aux_hidden_state", default=True)
    family = family_of(flat, drafter)
    if family.runs_without_aux_states and not fuses:
        return NO_AUX_LAYERS
    return resolve_aux_layers(
        flat,
        num_target_layers=target.num_layers,
        convention=family.layer_ids,
        is_speculators=format_of(flat) == "speculators",
        override=override,
    )


def _errors(name: str, problems: Iterable[Problem]) -> tuple[Finding, ...]:
    """Return the findings of a rule without which nothing else can be said."""
    return tuple(Finding(name, Severity.ERROR, problem, False) for problem in problems)
