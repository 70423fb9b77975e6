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
from typing import Any

from vllm_eagle_ext.measure.engine.client import EngineFailedError
from vllm_eagle_ext.measure.engine.load import Measured
from vllm_eagle_ext.measure.verify.request import Check, Verdict, VerifyRequest, not_applicable
from vllm_eagle_ext.memory.state_blocks import Scheme
from vllm_eagle_ext.start.failed_start import cause_of

# Two continuations whose log-probabilities differ by less are a near-tie: a step that verifies K+1
# tokens sums in another order than one of a single token, so that either may come first. 0.25: two steps
# of bf16 for logits of 16 to 32, which are 0.125 apart.
TIE_GAP, TIE_GAP_FLOAT32 = 0.25, 1e-3
_ROUNDING = 1e-5  # of logprobs: logits two steps apart have a gap of 0.25, and a little more or less
TOP = 5  # tokens whose logprobs are asked for
STATES = "hybrid states"
SCHEMES: Mapping[Scheme, str] = {"replay": "replay", "per_token": "one state block per draft token"}
# All that this package refuses begins so, after an error's name or pydantic's "Value error".
_REFUSAL = re.compile(r"[Ee]rror[:,] vllm-eagle-ext: (.+)")

Texts = Sequence[Sequence[int]]
# The likeliest next tokens of each prompt -> their logprobs.
Ask = Callable[[list[list[int]]], list[dict[int, float]]]


def tie_bound(request: VerifyRequest) -> float:
    """Return the gap of a tie. vLLM serves a float32 checkpoint in 16 bit, unless told otherwise."""
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
    diverged = []
    for number, texts in enumerate(zip(left, right, strict=True)):
        pairs = enumerate(zip_longest(*texts))
        if (first := next(((at, pair) for at, pair in pairs if pair[0] != pair[1]), None)) is not None:
            diverged.append(Divergence(number, *first))
    return diverged


def with_gaps(
    diverged: Sequence[Divergence], prompts: Texts, texts: Texts, ask: Ask
) -> list[Divergence]:
    """Return the target's view of each divergence, asked after the common prefix.

    The gap is infinite where one of the two tokens is not among the likeliest, or one text ends there.
    """
    contexts = [[*prompts[each.prompt], *texts[each.prompt][: each.at]] for each in diverged]
    judged = []
    for each, row in zip(diverged, ask(contexts) if contexts else [], strict=True):
        chances = [-inf if token is None else row.get(token, -inf) for token in each.tokens]
        judged.append(replace(each, gap=max(row.values()) - min(chances)))
    return judged


def judge_texts(
    name: str,
    diverged: Sequence[Divergence],
    texts: Texts,
    *,
    bound: float,
    without: str = "without the draft",
) -> Check:
    """Pass if texts diverge only at near-tied logits."""
    near = [each for each in diverged if each.gap <= bound + _ROUNDING]
    wrong = [each for each in diverged if each.gap > bound + _ROUNDING]
    equal, largest = len(texts) - len(diverged), max((each.gap for each in near), default=0.0)
    said = f"{equal} of {len(texts)} texts equal those {without}"
    if near:
        said += f", {len(near)} diverge at near-tied logits (gap up to {largest:.3f})"
    if wrong:
        said += f", {len(wrong)} diverge where they are not near-tied"
    figures = {
        "texts": len(texts), "tokens": sum(map(len, texts)), "equal": equal, "near_ties": len(near),
        "largest_near_tie": largest, "bound": bound, "diverged": [each.to_json() for each in wrong],
    }  # fmt: skip
    details = []
    for each in wrong[:5]:
        gap = f"gap {each.gap:.3f}" if isfinite(each.gap) else f"not among the {TOP} likeliest"
        left, right = each.tokens
        details.append(f"prompt {each.prompt + 1}, token {each.at + 1}: {left} and {right}, {gap}")
    verdict = Verdict.FAILED if wrong else Verdict.PASSED
    return Check(name, verdict, said + ".", tuple(details), figures)


def other_scheme(scheme: Scheme) -> Scheme:
    return "per_token" if scheme == "replay" else "replay"


def judge_failure(error: EngineFailedError, scheme: Scheme, log: str) -> Check:
    """Report that an engine with the other scheme did not start or ended: no fault of the draft."""
    message = str(error.value)
    if refusal := _REFUSAL.search(message) or _REFUSAL.search(log):
        return not_applicable(STATES, f"{SCHEMES[scheme]} cannot be had here: {refusal.group(1)}")
    reason, _ = cause_of((message.splitlines() or [""])[0], log.splitlines())
    return not_applicable(STATES, f"the engine with {SCHEMES[scheme]}, to compare with, ended: {reason}")


def judge_states(
    mine: Measured, theirs: Measured, diverged: list[Divergence], *, served: Scheme, bound: float
) -> Check:
    """Compare both schemes; `diverged` is where their texts do, with the target's gaps."""
    without = f"with {SCHEMES[other_scheme(served)]}"
    check = judge_texts(STATES, diverged, mine.texts, bound=bound, without=without)
    said = f"Served with {SCHEMES[served]}: {check.said}"
    counters = [[each.drafts, *each.accepted] for each in (mine, theirs)]
    figures = {
        **check.figures,
        "served": served,
        "counters": dict(zip((served, other_scheme(served)), counters, strict=True)),
    }
    if diverged:
        return replace(check, said=said, figures=figures)
    if counters[0] != counters[1]:
        details = [
            f"{SCHEMES[scheme]}: drafts, accepted {row}"
            for scheme, row in zip((served, other_scheme(served)), counters, strict=True)
        ]
        details.append(
            "Near a tie of its own logits, the draft may choose otherwise after another kernel."
        )
        said += " Their counters differ."
        return Check(STATES, Verdict.WARNING, said, tuple(details), figures)
    return replace(check, said=said + " So do drafts and accepted tokens.", figures=figures)
