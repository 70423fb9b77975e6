# SPDX-License-Identifier: Apache-2.0
"""Greedy texts side by side: where they diverge, and whether the logits were near-tied there.

Hybrid targets: the same texts with replay and with one state block per draft token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from math import inf, isfinite
from typing import Any, Literal

from vllm_eagle_ext.measure.engine.client import EngineFailedError
from vllm_eagle_ext.measure.engine.load import Measured
from vllm_eagle_ext.measure.verify.request import Check, Verdict, VerifyRequest, not_applicable
from vllm_eagle_ext.start.failure_causes import cause_of

# Two continuations whose log-probabilities differ by less are a near-tie: a step that verifies K+1
# tokens sums in another order than one of a single token, so that either may come first. 0.25: two steps
# of bf16 for logits of 16 to 32, which are 0.125 apart.
TIE_GAP, TIE_GAP_FLOAT32 = 0.25, 1e-3
_ROUNDING = 1e-5  # of logprobs: logits two steps apart have a gap of 0.25, and a little more or less
TOP = 5  # tokens whose logprobs are asked for
STATES = "hybrid states"
Scheme = Literal["replay", "per_token"]
SCHEMES: Mapping[Scheme, str] = {"replay": "replay", "per_token": "one state block per draft token"}
# All that this package refuses begins so, after an error's name or pydantic's "Value error".
_REFUSAL = re.compile(r"[Ee]rror[:,] vllm-eagle-ext: (.+)")

Texts = Sequence[Sequence[int]]
# The likeliest next tokens of each prompt -> their logprobs.
Logprobs = Callable[[list[list[int]]], list[dict[int, float]]]


def tie_bound(request: VerifyRequest) -> float:
    """Return the gap up to which logits are tied.

    vLLM serves a float32 checkpoint in 16 bit, unless told otherwise.
    """
    if request.tie_gap is not None:
        return request.tie_gap
    return TIE_GAP_FLOAT32 if request.engine.get("dtype") in ("float32", "float") else TIE_GAP


@dataclass(frozen=True, slots=True)
class Divergence:
    prompt: int  # its number
    at: int  # tokens in common
    tokens: tuple[int | None, int | None]  # None: the text has ended
    gap: float = inf  # between the likeliest token and the less likely of the two

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "gap": self.gap if isfinite(self.gap) else None}


def divergences(left: Texts, right: Texts) -> list[Divergence]:
    found = []
    for number, (one, other) in enumerate(zip(left, right, strict=True)):
        pairs = enumerate(zip_longest(one, other))
        if (first := next((at for at in pairs if at[1][0] != at[1][1]), None)) is not None:
            found.append(Divergence(number, first[0], first[1]))
    return found


def with_gaps(
    found: Sequence[Divergence], prompts: Texts, texts: Texts, ask: Logprobs
) -> list[Divergence]:
    """Return the target's view of each divergence, asked after the common prefix."""
    contexts = [[*prompts[one.prompt], *texts[one.prompt][: one.at]] for one in found]
    rows = ask(contexts) if contexts else []
    return [
        Divergence(one.prompt, one.at, one.tokens, _gap(one.tokens, row))
        for one, row in zip(found, rows, strict=True)
    ]


def _gap(tokens: tuple[int | None, int | None], logprobs: Mapping[int, float]) -> float:
    """Return how far the less likely of two tokens is from the likeliest.

    It is infinite where one of the two is not among the likeliest, or one text ends there.
    """
    seen = [-inf if token is None else logprobs.get(token, -inf) for token in tokens]
    return max(logprobs.values()) - min(seen)


def judge_texts(
    name: str,
    found: Sequence[Divergence],
    texts: Texts,
    *,
    bound: float,
    without: str = "without the draft",
) -> Check:
    """Pass if texts diverge only at near-tied logits."""
    near = [one for one in found if one.gap <= bound + _ROUNDING]
    wrong = [one for one in found if one.gap > bound + _ROUNDING]
    equal, largest = len(texts) - len(found), max((one.gap for one in near), default=0.0)
    said = f"{equal} of {len(texts)} texts equal those {without}"
    if near:
        said += f", {len(near)} diverge at near-tied logits (gap up to {largest:.3f})"
    if wrong:
        said += f", {len(wrong)} diverge where they are not near-tied"
    figures = {
        "texts": len(texts), "tokens": sum(map(len, texts)), "equal": equal, "near_ties": len(near),
        "largest_near_tie": largest, "bound": bound, "diverged": [one.to_json() for one in wrong],
    }  # fmt: skip
    details = []
    for one in wrong[:5]:
        gap = f"gap {one.gap:.3f}" if isfinite(one.gap) else f"not among the {TOP} likeliest"
        left, right = one.tokens
        details.append(f"prompt {one.prompt + 1}, token {one.at + 1}: {left} and {right}, {gap}")
    found_verdict = Verdict.FAILED if wrong else Verdict.PASSED
    return Check(name, found_verdict, said + ".", tuple(details), figures)


def other_scheme(scheme: Scheme) -> Scheme:
    return "per_token" if scheme == "replay" else "replay"


def judge_failure(error: EngineFailedError, scheme: Scheme, log: str = "") -> Check:
    """Report that an engine with the other scheme did not start or ended.

    That says nothing about the draft.

    Args:
        log: all of it; "": the end of it in the message will do.
    """
    message, log = str(error.value), log or "\n".join([error.remedy, *error.more])
    if refusal := _REFUSAL.search(message) or _REFUSAL.search(log):
        return not_applicable(STATES, f"{SCHEMES[scheme]} cannot be had here: {refusal.group(1)}")
    reason, _ = cause_of((message.splitlines() or [""])[0], log.splitlines())
    return not_applicable(STATES, f"the engine with {SCHEMES[scheme]}, to compare with, ended: {reason}")


def judge_states(
    mine: Measured, theirs: Measured, found: list[Divergence], *, served: Scheme, bound: float
) -> Check:
    """Compare both schemes; `found` is where their texts diverge, with the target's gaps."""
    without = f"with {SCHEMES[other_scheme(served)]}"
    check = judge_texts(STATES, found, mine.texts, bound=bound, without=without)
    said = f"Served with {SCHEMES[served]}: {check.said}"
    counters = [[one.drafts, *one.accepted] for one in (mine, theirs)]
    figures = {
        **check.figures,
        "served": served,
        "counters": dict(zip((served, other_scheme(served)), counters, strict=True)),
    }
    if found:
        return replace(check, said=said, figures=figures)
    if counters[0] != counters[1]:
        details = [
            f"{SCHEMES[one]}: drafts, accepted {row}"
            for one, row in zip((served, other_scheme(served)), counters, strict=True)
        ]
        details.append(
            "Near a tie of its own logits, the draft may choose otherwise after another kernel."
        )
        said += " Their counters differ."
        return Check(STATES, Verdict.WARNING, said, tuple(details), figures)
    return replace(check, said=said + " So do drafts and accepted tokens.", figures=figures)
