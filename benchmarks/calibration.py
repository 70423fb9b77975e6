# SPDX-License-Identifier: Apache-2.0
"""What a draft's own probabilities tell of acceptance: AUC, calibration, and rules that cut its tail.

A draft holds the largest probability of each of its K distributions. Position j is accepted where the
target accepted at least j + 1 tokens; it is reached where it accepted at least j.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from operator import mul
from typing import Any

BINS = 10  # of a reliability curve, equally wide
CUT_OFFS, OWN = (0.02, 0.05, 0.1, 0.2), (0.1, 0.2)

Rule = Callable[[Sequence[float]], int]  # top-1 probabilities [K] -> how many are verified
Judged = Sequence[tuple[float, bool]]  # a probability, and whether its token was accepted


@dataclass(frozen=True, slots=True)
class Draft:
    """A drafted chain or block, verified whole."""

    probabilities: tuple[float, ...]  # [K], of each distribution's most probable token
    accepted: int  # 0 to K


def products(probabilities: Sequence[float]) -> list[float]:
    """Return [K]: how probable it is, by the draft, that all tokens up to this one are right."""
    return list(accumulate(probabilities, mul))


def keeps_product(least: float) -> Rule:
    """Verify while the product of the probabilities so far is at least `least`.

    The figures must be the distributions' largest probabilities. A rule that reads those of the drawn
    tokens drops improbable draws, and the target then draws anew: what is kept is sampled too often.
    """
    return lambda probabilities: sum(1 for _ in takewhile(least.__le__, products(probabilities)))


def keeps_own(least: float) -> Rule:
    """Verify up to the first token below `least`, as llama.cpp's `p_min` does."""
    return lambda probabilities: sum(1 for _ in takewhile(least.__le__, probabilities))


def keeps_first(count: int) -> Rule:
    """Verify a fixed number of tokens."""
    return lambda probabilities: min(count, len(probabilities))


def rules_of(k: int) -> dict[str, Rule]:
    """Return the rules that are compared, by name."""
    found: dict[str, Rule] = {"all": keeps_first(k)}
    found |= {f"running product >= {least:g}": keeps_product(least) for least in CUT_OFFS}
    found |= {f"own p >= {least:g} (llama.cpp's p_min)": keeps_own(least) for least in OWN}
    return found | {f"fixed K'={count}": keeps_first(count) for count in range(1, k)}


def outcome(drafts: Sequence[Draft], rule: Rule) -> dict[str, float]:
    """Return the shares of rows verified and of accepted tokens kept, and the acceptance length."""
    kept = [rule(draft.probabilities) for draft in drafts]
    right = sum(min(draft.accepted, count) for draft, count in zip(drafts, kept, strict=True))
    accepted = sum(draft.accepted for draft in drafts)
    return {
        "rows": sum(kept) / sum(len(draft.probabilities) for draft in drafts),
        "accepted": right / accepted if accepted else 1.0,
        "acceptance_length": 1 + right / len(drafts),
    }


def judged(drafts: Sequence[Draft], *, reached: bool = False, product: bool = False) -> Judged:
    """Return every position with its outcome.

    Args:
        reached: leave out those behind a rejection, which the target never judged for themselves.
        product: of all probabilities so far, in place of the position's own.
    """
    return [
        (figure, draft.accepted > position)
        for draft in drafts
        for position, figure in enumerate(
            products(draft.probabilities) if product else draft.probabilities
        )
        if not reached or draft.accepted >= position
    ]


def auc(found: Judged) -> float:
    """Return how often an accepted token has the larger figure of a random accepted and rejected one,
    ties half; nan where all were accepted, or none."""
    ordered = sorted(found)
    ranks, begin = 0.0, 0
    while begin < len(ordered):
        end = begin
        while end < len(ordered) and ordered[end][0] == ordered[begin][0]:
            end += 1
        middle = (begin + 1 + end) / 2  # the mean of the ranks begin + 1 .. end
        ranks += middle * sum(right for _, right in ordered[begin:end])
        begin = end
    rights = sum(right for _, right in ordered)
    pairs = rights * (len(ordered) - rights)
    return (ranks - rights * (rights + 1) / 2) / pairs if pairs else float("nan")


def reliability(found: Judged) -> list[dict[str, float]]:
    """Return each bin's mean figure, share accepted and count; bins without tokens are left out."""
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for one in found:
        bins[min(int(one[0] * BINS), BINS - 1)].append(one)
    return [
        {
            "probability": sum(figure for figure, _ in each) / len(each),
            "accepted": sum(right for _, right in each) / len(each),
            "count": len(each),
        }
        for each in bins
        if each
    ]


def ece(found: Judged) -> float:
    """Return the expected calibration error: how far bins lie from the diagonal, by their counts."""
    rows = reliability(found)
    return sum(row["count"] * abs(row["probability"] - row["accepted"]) for row in rows) / len(found)


def summary(drafts: Sequence[Draft]) -> dict[str, Any]:
    """Return all figures of drafts of one K.

    Raises:
        ValueError: there are no drafts, or they differ in K.
    """
    lengths = {len(draft.probabilities) for draft in drafts}
    if len(lengths) != 1:
        raise ValueError(f"drafts have lengths {sorted(lengths)}: record some, all of one K")
    k = lengths.pop()
    curves = {}
    for name, choice in {
        "all": {},
        "reached": {"reached": True},
        "product": {"product": True},
    }.items():
        found = judged(drafts, **choice)
        curves[name] = {"auc": auc(found), "ece": ece(found), "bins": reliability(found)}
    return {
        "k": k,
        "drafts": len(drafts),
        "acceptance_length": outcome(drafts, keeps_first(k))["acceptance_length"],
        "accepted_per_position": [
            sum(draft.accepted > position for draft in drafts) / len(drafts) for position in range(k)
        ],
        "curves": curves,
        "rules": {name: outcome(drafts, rule) for name, rule in rules_of(k).items()},
    }
