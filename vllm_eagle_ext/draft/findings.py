# SPDX-License-Identifier: Apache-2.0
"""What a rule finds, how grave it is, and how rules are made, collected and applied."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from types import ModuleType
from typing import Any

from vllm_eagle_ext.errors import EagleExtError, UnsupportedDraftError, sentence
from vllm_eagle_ext.printable import shown

AS_TRAINED = "state in config.json what the draft was trained with, or ask its publisher"
ITS_TARGET = "serve the draft with the target it was trained for"
BELONGS = "check that config.json belongs to the weights"
WHICH_ONE = "ask the publisher which one the draft was trained with, and correct config.json"
_MOST_FINDINGS = 50  # of a rule


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


def key_problem(key: str, value: object, *, allowed: str, remedy: str) -> Problem:
    """Make the problem of a key, or of several, of the draft's config.json."""
    return Problem(
        field=f"{key} of the draft's config.json", value=value, allowed=allowed, remedy=remedy
    )


@dataclass(frozen=True, slots=True)
class Finding:
    rule: str
    severity: Severity
    problem: Problem
    can_run: bool  # an engine would start with it; `strict: false` lets it
    follows_from: str | None = None  # the rule whose error it is a consequence of
    error: type[EagleExtError] | None = UnsupportedDraftError


def contradictions(
    places: Mapping[str, object], allowed: str, *, key: str = "", remedy: str = WHICH_ONE
) -> Iterator[Problem]:
    """Find out whether places of a config state different values.

    Args:
        places: in words -> the value there; None: it states none.
        key: what they state, unless the words say it.
    """
    places = {place: value for place, value in places.items() if value is not None}
    if len(set(places.values())) > 1:
        yield Problem(
            field=f"{key} {' and '.join(places)}".lstrip(),
            value=tuple(places.values()),
            allowed=allowed,
            remedy=remedy,
        )


Problems = Iterable[Problem]
Check = Callable[..., Problems]


@dataclass(frozen=True)
class Rule:
    name: str
    severity: Severity
    can_run: bool
    of: str | None
    error: type[EagleExtError] | None
    check: Check

    @cached_property
    def needs(self) -> tuple[frozenset[str], frozenset[str]]:
        """Name the subjects that its function takes: those without which it does not apply, and all."""
        taken = inspect.signature(self.check).parameters
        needed = (name for name, each in taken.items() if each.default is each.empty)
        return frozenset(needed), frozenset(taken)


def apply_rules(rules: Iterable[Rule], **subjects: Any) -> list[Finding]:
    """Apply rules in their order, each to those of the subjects that its function names.

    A rule applies where none of the subjects that it needs is None. Findings of one rule beyond a number
    become one: a file may hold any number.
    """
    findings: list[Finding] = []
    known = {name for name, subject in subjects.items() if subject is not None}
    for rule in rules:
        needed, taken = rule.needs
        if not needed <= known:
            continue
        problems = list(rule.check(**{name: subjects[name] for name in taken & known}))
        if (more := len(problems) - _MOST_FINDINGS) > 0:
            rest = "number of further findings of this rule"
            problems[_MOST_FINDINGS:] = [Problem(field=rest, value=more, message="Not shown")]
        findings += (
            Finding(rule.name, rule.severity, p, rule.can_run, error=rule.error) for p in problems
        )
    return findings


def rule(
    severity: Severity, *, can_run: bool = False, of: str | None = None,
    error: type[EagleExtError] | None = UnsupportedDraftError,
) -> Callable[[Check], Rule]:  # fmt: skip
    """Make a rule of a function `(subjects) -> problems`; its name is the function's.

    Args:
        can_run: an engine would start in spite of the error.
        of: the kind of families that it is for, a key of `rules.KINDS`; None for all.
        error: that a start raises; None: vLLM's.
    """

    def make(check: Check) -> Rule:
        runs = can_run or severity != Severity.ERROR
        return Rule(check.__name__, severity, runs, of, error, check)

    return make


def rules_in(*modules: ModuleType) -> tuple[Rule, ...]:
    """Return the rules that modules define, in the order of their files."""
    defined = (value for module in modules for value in vars(module).items())
    return tuple(value for name, value in defined if isinstance(value, Rule) and value.name == name)


def relax(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings as `strict: false` has them: errors that an engine starts with warn."""
    return [
        replace(finding, severity=Severity.WARNING)
        if finding.severity == Severity.ERROR and finding.can_run
        else finding
        for finding in findings
    ]
