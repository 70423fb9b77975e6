# SPDX-License-Identifier: Apache-2.0
"""Hybrid targets: the same texts with replay and with one state block per draft token."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from vllm_eagle_ext.failure_causes import cause_of
from vllm_eagle_ext.measure.engine.client import EngineFailedError
from vllm_eagle_ext.measure.engine.load import Measured
from vllm_eagle_ext.measure.verify.texts import Divergence, judge_texts
from vllm_eagle_ext.measure.verify.verdicts import Check, Verdict, not_applicable

NAME = "hybrid states"
Scheme = Literal["replay", "per_token"]
_SCHEMES: Mapping[Scheme, str] = {"replay": "replay", "per_token": "one state block per draft token"}
# All that this package refuses begins so, after an error's name or pydantic's "Value error".
_REFUSAL = re.compile(r"[Ee]rror[:,] vllm-eagle-ext: (.+)")


def other(scheme: Scheme) -> Scheme:
    return "per_token" if scheme == "replay" else "replay"


def scheme_name(scheme: Scheme) -> str:
    """Name the scheme as messages do."""
    return _SCHEMES[scheme]


def judge_failure(error: EngineFailedError, scheme: Scheme, log: str = "") -> Check:
    """Report that an engine with the other scheme did not start or ended.

    That says nothing about the draft.

    Args:
        log: all of it; "": the end of it in the message will do.
    """
    said, told_before = str(error.value), log or "\n".join([error.remedy, *error.more])
    if refusal := _REFUSAL.search(said) or _REFUSAL.search(told_before):
        return not_applicable(NAME, f"{scheme_name(scheme)} cannot be had here: {refusal.group(1)}")
    reason, _ = cause_of((said.splitlines() or [""])[0], told_before.splitlines())
    return not_applicable(
        NAME, f"the engine with {scheme_name(scheme)}, to compare with, ended: {reason}"
    )


def judge_states(
    mine: Measured, theirs: Measured, found: list[Divergence], *, served: Scheme, bound: float
) -> Check:
    """Compare both schemes; `found` is where their texts diverge, with the target's gaps."""
    texts = [answer.tokens for answer in mine.answers]
    check = judge_texts(NAME, found, texts, bound=bound, without=f"with {scheme_name(other(served))}")
    said = f"Served with {scheme_name(served)}: {check.said}"
    counters = [[one.drafts, one.drafted, *one.accepted] for one in (mine, theirs)]
    figures = {
        **check.figures,
        "served": served,
        "counters": dict(zip((served, other(served)), counters, strict=True)),
    }
    if found:
        return replace(check, said=said, figures=figures)
    if counters[0] != counters[1]:
        details = [
            f"{scheme_name(one)}: drafts, drafted, accepted {row}"
            for one, row in zip((served, other(served)), counters, strict=True)
        ]
        details.append(
            "Near a tie of its own logits, the draft may choose otherwise after another kernel."
        )
        said += " Their counters differ."
        return Check(NAME, Verdict.WARNING, said, tuple(details), figures)
    return replace(check, said=said + " So do drafts and accepted tokens.", figures=figures)
