# SPDX-License-Identifier: Apache-2.0
"""What a verification found; first, what `vllm-eagle check` says, as a check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from vllm_eagle_ext.draft import Severity
from vllm_eagle_ext.draft.inspection import consequences
from vllm_eagle_ext.errors import sentence
from vllm_eagle_ext.start.check import CheckResult

PREFLIGHT = "preflight"


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "FAILED"
    WARNING = "warning"  # worth a look; the exit status does not count it
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    verdict: Verdict
    said: str  # one sentence: the numbers that decided, or the reason
    details: tuple[str, ...] = ()  # further lines
    figures: Mapping[str, Any] = field(default_factory=dict)  # plain JSON


@dataclass(frozen=True, slots=True)
class VerifyReport:
    draft: str
    target: str
    k: int
    checks: tuple[Check, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return int(any(check.verdict is Verdict.FAILED for check in self.checks))


def not_applicable(name: str, reason: str) -> Check:
    return Check(name, Verdict.NOT_APPLICABLE, reason)


def judge_preflight(checked: CheckResult) -> Check:
    inspection, spec = checked.inspection, checked.inspection.spec
    if spec is None and inspection.is_passed_through:
        return not_applicable(PREFLIGHT, "not one of this package's drafts: vLLM serves it unchecked")
    lines: list[str] = []
    for finding in inspection.findings:
        if finding.follows_from is None and finding.severity is not Severity.NOTE:
            problem = finding.problem
            head = f"{finding.severity.value} {finding.rule}: "
            lines += [
                head + sentence(problem.field, problem.value),
                *(f"  {x}" for x in problem.details),
            ]
    if inspection.errors or spec is None:
        count, follow = len(inspection.causes), consequences(inspection.errors)
        errors = f"{count} error{'s' * (count > 1)}" + (f", {follow}" if follow else "")
        said = f"The draft would be refused: {errors}."
    else:
        layer_ids = list(spec.aux_layers.layer_ids)
        said = f"{spec.title}" + (
            f", inputs of layers {layer_ids} of {checked.target.num_layers}." * bool(layer_ids)
        )
    found = Verdict.FAILED if inspection.errors else Verdict.PASSED
    findings = [{"rule": each.rule, "severity": each.severity.value} for each in inspection.findings]
    return Check(PREFLIGHT, found, said, tuple(lines), {"findings": findings})
