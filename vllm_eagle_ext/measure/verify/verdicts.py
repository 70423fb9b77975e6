# SPDX-License-Identifier: Apache-2.0
"""What a verification found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "FAILED"
    WARNING = "warning"  # worth a look; the exit status does not count it
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    verdict: Verdict
    said: str  # one sentence: the figures that decided, or the reason
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

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "exit_code": self.exit_code}, indent=1)


def verdict(passed: bool) -> Verdict:
    return Verdict.PASSED if passed else Verdict.FAILED


def not_applicable(name: str, reason: str) -> Check:
    return Check(name, Verdict.NOT_APPLICABLE, reason)
