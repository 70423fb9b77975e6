# SPDX-License-Identifier: Apache-2.0
"""What a rule finds, how grave it is, and the registry of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Any

from vllm_eagle_ext.errors import sentence
from vllm_eagle_ext.printable import shown

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


Check = Callable[[Any], Iterable[Problem]]


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    severity: Severity
    can_run: bool
    for_all: bool  # False: for the families whose records list it
    check: Check  # of a Candidate or a Case

    def apply(self, subject: Any) -> Iterator[Finding]:
        problems = iter(self.check(subject))
        for problem in (*islice(problems, _MOST), *_count(problems)):
            yield Finding(self.name, self.severity, problem, self.can_run)


def _count(problems: Iterator[Problem]) -> Iterator[Problem]:
    """Make one problem of all that are left: a file may hold any number."""
    if more := sum(1 for _ in problems):
        yield Problem(field="number of further findings of this rule", value=more, message="Not shown")


def rule(severity: Severity, *, can_run: bool = False, for_all: bool = True) -> Callable[[Check], Rule]:
    """Make a rule of a function `(subject) -> problems`; its name is the function's.

    Args:
        can_run: an engine would start in spite of the error.
        for_all: False where the records of some families list it.
    """

    def make(check: Check) -> Rule:
        runs = can_run or severity != Severity.ERROR
        return Rule(check.__name__, severity, runs, for_all, check)

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
