# SPDX-License-Identifier: Apache-2.0
"""Hybrid targets: the same texts with replay and with a state per token."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

from vllm_eagle_ext.failure_causes import cause_of
from vllm_eagle_ext.measure.engine.client import EngineFailedError
from vllm_eagle_ext.measure.engine.load import Measured
from vllm_eagle_ext.measure.verify.texts import Parting, judge_texts
from vllm_eagle_ext.measure.verify.verdicts import Check, Verdict, not_applicable

NAME = "hybrid states"
Scheme = Literal["replay", "per_token"]
# All that this package refuses begins so, behind an error's name or pydantic's "Value error".
_REFUSAL = re.compile(r"[Ee]rror[:,] vllm-eagle-ext: (.+)")


def other(scheme: Scheme) -> Scheme:
    return "per_token" if scheme == "replay" else "replay"


def judge_failure(error: EngineFailedError, scheme: Scheme, log: str = "") -> Check:
    """Of an engine with the other scheme, which is not served: its end says nothing about the draft.

    Args:
        log: all of it; "": the end of it in the message will do.
    """
    said, told_before = str(error.value), log or error.remedy
    if refusal := _REFUSAL.search(said) or _REFUSAL.search(told_before):
        return not_applicable(NAME, f"{scheme} cannot be had here: {refusal.group(1)}")
    reason, _ = cause_of((said.splitlines() or [""])[0], told_before.splitlines())
    return not_applicable(NAME, f"the engine with {scheme}, to compare with, ended: {reason}")


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
        details.append("Near a tie of its own, the draft may choose otherwise behind another kernel.")
        said += " Their counters differ."
        return Check(NAME, Verdict.WARNING, said, tuple(details), figures)
    return replace(check, said=said + " So do drafts and accepted tokens.", figures=figures)
