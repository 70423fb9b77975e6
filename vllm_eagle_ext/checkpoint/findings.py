# SPDX-License-Identifier: Apache-2.0
"""What a rule finds, how grave it is, and the registry of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from vllm_eagle_ext.errors import EagleExtError, UnsupportedDraftError, sentence
from vllm_eagle_ext.printable import shown

AS_TRAINED = "state in config.json what the draft was trained with, or ask its publisher"
_MOST = 50  # findings of one rule


class Severity(StrEnum):
    ERROR = "error"  # would draft garbage or crash
    WARNING = "warning"  # works, probably drafts worse than it could
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is not as a rule wants it, or that a note tells without asking for anything."""

    field: str
    value: object
    allowed: str = ""
    remedy: str = ""
    message: str = ""  # of a note, in place of the two above

    @property
    def details(self) -> tuple[str, ...]:
        """Return the lines below the first, on a terminal."""
        if self.message:
            return (shown(self.message),)
        return f"allowed: {shown(self.allowed)}", f"to do:   {shown(self.remedy)}"

    def __str__(self) -> str:
        rest = self.message or f"Allowed: {self.allowed}. What to do: {self.remedy}"
        return f"{sentence(self.field, self.value)}. {shown(rest)}"


@dataclass(frozen=True, slots=True)
class Finding:
    rule: str
    severity: Severity
    problem: Problem
    can_run: bool  # an engine would start with it; `strict: false` lets it
    follows_from: str | None = None  # the rule whose error it is a consequence of
    error: type[EagleExtError] = UnsupportedDraftError  # that a start raises


Check = Callable[[Any], Iterable[Problem]]


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    severity: Severity
    can_run: bool
    for_all: bool  # False: for the families whose records list it
    is_guess: bool  # of a foreseen engine: then an error is a warning
    error: type[EagleExtError]
    check: Check  # of a Candidate, a Case or an EngineFacts


def apply_rules(rules: Iterable[Rule], subject: Any) -> list[Finding]:
    """Apply rules to a draft, a case or an engine, in their order.

    Findings of one rule beyond a number become one: a file may hold any number.
    """
    found: list[Finding] = []
    engine = getattr(subject, "engine", subject)
    for rule in rules:
        is_guess = rule.is_guess and engine.is_foreseen
        severity, can_run = (Severity.WARNING, True) if is_guess else (rule.severity, rule.can_run)
        shown = 0
        for problem in rule.check(subject):
            shown += 1
            if shown > _MOST:
                continue
            found.append(Finding(rule.name, severity, problem, can_run, error=rule.error))
        if shown > _MOST:
            problem = Problem(
                field="number of further findings of this rule", value=shown - _MOST, message="Not shown"
            )
            found.append(Finding(rule.name, severity, problem, can_run, error=rule.error))
    return found


def rule(
    severity: Severity, *, can_run: bool = False, for_all: bool = True, is_guess: bool = False,
    error: type[EagleExtError] = UnsupportedDraftError,
) -> Callable[[Check], Rule]:  # fmt: skip
    """Make a rule of a function `(subject) -> problems`; its name is the function's.

    Args:
        can_run: an engine would start in spite of the error.
        for_all: False where the records of some families list it.
        is_guess: what it asks of an engine is only known once vLLM has read the target.
        error: that a start raises.
    """

    def make(check: Check) -> Rule:
        runs = can_run or severity != Severity.ERROR
        return Rule(check.__name__, severity, runs, for_all, is_guess, error, check)

    return make


def relax(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings as `strict: false` has them.

    An error that an engine would start with becomes a warning.
    """
    return [
        replace(finding, severity=Severity.WARNING)
        if finding.severity == Severity.ERROR and finding.can_run
        else finding
        for finding in findings
    ]
