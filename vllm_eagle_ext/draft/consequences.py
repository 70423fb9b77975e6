# SPDX-License-Identifier: Apache-2.0
"""Finds which findings follow from others, so that a report names a cause once and first.

A draft of another target breaks most rules at once. Where several facts of its config disagree with
the target, one finding says so and every other error follows from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from vllm_eagle_ext.draft.draft_config import DraftConfig
from vllm_eagle_ext.draft.findings import Finding, Problem, Severity
from vllm_eagle_ext.draft.target_facts import TargetFacts

ANOTHER_TARGET = "target_is_the_drafts_own"
# Errors that a wrong target by itself may cause; without one of them a draft is not called another's.
_OF_THE_PAIR = frozenset(
    {
        "aux_layer_ids_exist", "draft_vocabulary_fits", "narrow_vocabulary_is_padded",
        "target_depth_fits", "target_width_fits", "tokenizers_agree",
    }
)  # fmt: skip
# Rule -> rules whose errors follow where it finds one.
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
    findings: Iterable[Finding],
    model: str,
    config: DraftConfig,
    target: TargetFacts,
    layer_ids: Sequence[int],
) -> tuple[Finding, ...]:
    """Return the findings, each error that follows from another marked with that one's rule.

    Args:
        layer_ids: that the draft reads, valid or not.
    """
    found = list(findings)
    errors = [finding for finding in found if finding.severity == Severity.ERROR]
    of_the_pair = [finding for finding in errors if finding.rule in _OF_THE_PAIR]
    signs = list(_signs(config, target, layer_ids))
    if of_the_pair and len(signs) > 1:
        can_run = all(finding.can_run for finding in of_the_pair)
        cause = Finding(ANOTHER_TARGET, Severity.ERROR, _another_target(model, signs), can_run)
        causes = {ANOTHER_TARGET: {finding.rule for finding in errors}}
        return (cause, *_marked(found, causes))
    rules = {finding.rule for finding in errors}
    return _marked(found, {rule: follow for rule, follow in CONSEQUENCES.items() if rule in rules})


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
    stated = (config.num_target_layers, config.target_num_hidden_layers)
    depths = [depth for depth in stated if depth not in (None, layers, len(layer_ids))]
    if depths:
        yield f"{depths[0]} layers (here {layers})"
    elif layer_ids and max(layer_ids) > layers:
        yield f"at least {max(layer_ids)} layers (here {layers})"


def _another_target(model: str, signs: Iterable[str]) -> Problem:
    return Problem(
        field=f"target of the draft {model!r}",
        value="probably another one",
        allowed="the target that the draft was trained for. Its config.json expects " + ", ".join(signs),
        remedy="name that target, or a draft that was trained for this one",
    )


def consequences(errors: Sequence[Finding]) -> str:
    """Say how many errors follow from those that are reported, or return "" if none does."""
    count = sum(finding.follows_from is not None for finding in errors)
    these = "it" if len(errors) == count + 1 else "them"
    return f"and {count} further error{'s follow' if count > 1 else ' follows'} from {these}" * bool(
        count
    )
