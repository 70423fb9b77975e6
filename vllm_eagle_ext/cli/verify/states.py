# SPDX-License-Identifier: Apache-2.0
"""Hybrid targets: the same texts with replay and with a state per token."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from vllm_eagle_ext.cli.engine.client import EngineFailedError
from vllm_eagle_ext.cli.engine.load import Measured
from vllm_eagle_ext.cli.verify.report import Check, Verdict, not_applicable
from vllm_eagle_ext.cli.verify.texts import Parting, judge_texts

NAME = "hybrid states"
Scheme = Literal["replay", "slots"]
_SAID = re.compile(r"Recurrent state of \S+: (replay|slots)\b")  # of the intake's line
_REFUSAL = "vllm-eagle-ext: "  # all that this package refuses begins so


def scheme_of(options: Mapping[str, Any], log: Path) -> Scheme | None:
    """What an engine kept its states by; None: its log does not say."""
    asked = options.get("hybrid_state")
    if asked == "replay" or asked == "slots":
        return asked
    found = _SAID.search(" ".join(log.read_text(errors="replace").split()))
    return found.group(1) if found else None  # type: ignore[return-value]


def other(scheme: Scheme) -> Scheme:
    return "slots" if scheme == "replay" else "replay"


def judge_failure(error: EngineFailedError, scheme: Scheme) -> Check:
    """Of an engine with the other scheme: a refusal has a reason, all else is a fault."""
    said = str(error.value)
    if _REFUSAL in said:
        reason = said.split(_REFUSAL, 1)[1].splitlines()[0]
        return not_applicable(NAME, f"{scheme} cannot be had here: {reason}")
    return Check(NAME, Verdict.FAILED, f"The engine with {scheme} ended: {said}", (error.remedy,))


def judge_states(
    mine: Measured, theirs: Measured, found: list[Parting], *, served: Scheme, bound: float
) -> Check:
    """found: where the texts of both part, with the target's gaps."""
    texts = [answer.tokens for answer in mine.answers]
    check = judge_texts(NAME, found, texts, bound=bound, without=f"with {other(served)}")
    said = f"Served with {served}: {check.said}"
    counters = [[one.drafts, one.drafted, *one.accepted] for one in (mine, theirs)]
    figures = {
        **check.figures,
        "served": served,
        "counters": dict(zip((served, other(served)), counters, strict=True)),
    }
    if found:
        return replace(check, said=said, figures=figures)
    if counters[0] != counters[1]:
        details = [f"{one}: drafts, drafted, accepted {row}" for one, row in figures["counters"].items()]
        said += " Their counters differ."
        return Check(NAME, Verdict.FAILED, said, tuple(details), figures)
    return replace(check, said=said + " So do drafts and accepted tokens.", figures=figures)
