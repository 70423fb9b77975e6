# SPDX-License-Identifier: Apache-2.0
"""Tells the user of an engine what was found: one error before it starts, or warnings in its log.

A dry start collects instead: it lists everything that a start would stumble over.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from vllm_eagle_ext.draft import Case, DraftSpec, Finding, Inspection, Severity
from vllm_eagle_ext.draft.findings import Rule, apply_rules, relax
from vllm_eagle_ext.draft.inspection import consequences
from vllm_eagle_ext.errors import EagleExtError, SpeculativeConfigError, UnsupportedDraftError
from vllm_eagle_ext.log import get_logger, log_once
from vllm_eagle_ext.options import Options

logger = get_logger(__name__)

_LEVELS = {
    Severity.ERROR: logging.ERROR, Severity.WARNING: logging.WARNING, Severity.NOTE: logging.INFO,
}  # fmt: skip


@dataclass(slots=True)
class Collected:
    """What a start would have said, in its order."""

    findings: list[Finding] = field(default_factory=list)
    inspected: bool = False  # the draft's files were reached
    state: str | None = None  # how a hybrid target's recurrent states are kept

    def add(self, findings: Iterable[Finding]) -> None:
        """Add what is new: a start may look at a draft twice."""
        for finding in findings:
            if finding not in self.findings:
                self.findings.append(finding)


_collected: Collected | None = None  # None: a start that raises its first error


@contextmanager
def collecting() -> Iterator[Collected]:
    """Keep in this process what rules find, errors too, and let the start go on."""
    global _collected
    before, _collected = _collected, Collected()
    try:
        yield _collected
    finally:
        _collected = before


def tell_state(choice: str) -> None:
    """Keep for a dry start how recurrent states would be kept."""
    if _collected is not None:
        _collected.state = choice


def judge(rules: Iterable[Rule], options: Options, **subjects: Any) -> None:
    """Apply rules of the engine in turn: raise the first error, and log the rest once.

    Raises:
        EagleExtError: what the rule of the first error names.
    """
    for rule in rules:
        findings = apply_rules((rule,), options=options, **subjects)
        findings = findings if options.strict else relax(findings)
        if _collected is not None:
            _collected.add(findings)
            continue
        for finding in findings:
            if finding.severity == Severity.ERROR:
                raise _error(finding, ())
            log_once(logger, _LEVELS[finding.severity], f"{finding.problem}.")


def _error(finding: Finding, more: Sequence[str]) -> EagleExtError:
    first, kind = finding.problem, finding.error or UnsupportedDraftError
    of_the_request = first.field.startswith(("speculative_config", "num_speculative_tokens"))
    if kind is UnsupportedDraftError and of_the_request:
        kind = SpeculativeConfigError
    return kind(
        field=first.field, value=first.value, allowed=first.allowed, remedy=first.remedy, more=more
    )


def raise_errors(inspection: Inspection, model: str) -> None:
    """Refuse a draft with errors; one message tells the first cause and what else there is.

    Raises:
        UnsupportedDraftError: an error of the checkpoint comes first.
        SpeculativeConfigError: an error of the request comes first.
    """
    if _collected is not None:
        _collected.inspected = True
        _collected.add(inspection.findings)
    elif inspection.errors:
        first, *others = inspection.causes
        more = [f"also: {finding.problem}" for finding in others]
        if follow := consequences(inspection.errors):
            more.append(f"{follow}: `vllm-eagle check --all` shows all")
        how = f"draft: {model}"
        if all(finding.can_run for finding in inspection.errors):
            how += '; to serve it all the same: {"eagle_ext": {"strict": false}}'
        raise _error(first, [*more, how])


def log_inspection(case: Case, findings: Iterable[Finding], num_target_layers: int) -> None:
    """Log one line on what was decided, then warnings and notes; each once per process."""
    spec = case.spec
    log_once(logger, logging.INFO, describe(spec, num_target_layers))
    for finding in findings:
        log_once(logger, _LEVELS[finding.severity], f"Draft {spec.model!r}: {finding.problem}")


def describe(spec: DraftSpec, num_target_layers: int) -> str:
    norms = [name for name in ("fc_norm", "norm_output") if spec.flags[name]]
    if spec.norm_before_fc:
        norms.append("input_norm")
    layers, whose = spec.aux_layers, "vLLM's own " if spec.drafter.uses_vllm_class else ""
    window = f"attends to the last {spec.draft_window} tokens; " if spec.draft_window else ""
    kept = f"drafts {len(spec.kept_ids)} tokens only; " if spec.kept_ids else ""
    by_option = spec.norm_output.source.startswith("option")
    source = spec.norm_output.source if by_option else "config"
    return (
        f"Draft {spec.model!r} ({spec.title}, norms: {', '.join(norms) or 'none'}, from "
        f"{source}) reads the inputs of target layers {layers.by_block} of "
        f"{num_target_layers}; rule: {layers.rule}; {f'gate: {spec.gate}; ' if spec.gate else ''}"
        f"{window}{kept}served by {whose}{spec.drafter.architecture}."
    )
