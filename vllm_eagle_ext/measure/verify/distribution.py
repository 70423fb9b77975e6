# SPDX-License-Identifier: Apache-2.0
"""Texts sampled at temperature 1 against the target's own probabilities of all that can be said.

After a context, DEPTH tokens are followed: at each the BRANCHES likeliest ones, and one leaf for any
other, which ends its branch. The leaves are few, exclude each other and hold all of the probability.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from math import exp, log
from typing import Any

from vllm_eagle_ext.measure.verify.request import Check, Verdict, not_applicable
from vllm_eagle_ext.measure.verify.texts import Ask

DEPTH, BRANCHES = 3, 4
OTHER = -1  # a leaf's last entry: a token that is none of its siblings
EXPECTED = 5  # least expected count of a cell
LEAST_P = 1e-4
NAME = "sampled texts"

Leaf = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """Goodness of fit of a sample."""

    chi_square: float
    cells: int
    freedom: int

    @property
    def p(self) -> float:
        import torch

        halves = torch.tensor([self.freedom, self.chi_square], dtype=torch.float64) / 2
        return float(torch.special.gammaincc(*halves))

    def __str__(self) -> str:
        return f"chi-square {self.chi_square:.1f} over {self.cells} cells, p = {self.p:.3g}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "p": self.p}


def tree(context: Sequence[int], ask: Ask) -> dict[Leaf, float]:
    """Return each leaf's probability, neighbours being those that share a prefix."""
    rows: dict[Leaf, Mapping[int, float]] = {}
    level: list[Leaf] = [()]
    for _ in range(DEPTH):
        rows.update(zip(level, ask([[*context, *prefix] for prefix in level]), strict=True))
        level = [(*prefix, token) for prefix in level for token in rows[prefix]]
    return dict(_leaves((), 1.0, rows))


def _leaves(
    prefix: Leaf, chance: float, rows: Mapping[Leaf, Mapping[int, float]]
) -> Iterator[tuple[Leaf, float]]:
    if prefix not in rows:
        yield prefix, chance
        return
    for token, logprob in rows[prefix].items():
        yield from _leaves((*prefix, token), chance * exp(logprob), rows)
    yield (*prefix, OTHER), chance * max(0.0, 1 - sum(map(exp, rows[prefix].values())))


def leaf_of(text: Sequence[int], leaves: Mapping[Leaf, float]) -> Leaf:
    """Find where a sampled text of at least DEPTH tokens ends."""
    for length in range(DEPTH):
        other, further = (*text[:length], OTHER), tuple(text[: length + 1])
        if other in leaves and further not in leaves and (*further, OTHER) not in leaves:
            return other
    return tuple(text[:DEPTH])


def fit(texts: Sequence[Sequence[int]], leaves: Mapping[Leaf, float]) -> Fit:
    """Compare where texts end with the leaves' chances, pooled until EXPECTED are expected of a cell."""
    counts = dict.fromkeys(leaves, 0)
    for text in texts:
        counts[leaf_of(text, leaves)] += 1
    cells: list[list[float]] = [[0.0, 0.0]]
    for leaf, chance in leaves.items():
        if cells[-1][1] >= EXPECTED:
            cells.append([0.0, 0.0])
        cells[-1][0] += counts[leaf]
        cells[-1][1] += chance * len(texts)
    if len(cells) > 1 and cells[-1][1] < EXPECTED:
        last = cells.pop()
        cells[-1] = [a + b for a, b in zip(cells[-1], last, strict=True)]
    chi_square = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    return Fit(chi_square, len(cells), len(cells) - 1)


def joint(fits: Sequence[Fit]) -> Fit:
    """Return the fit of independent samples together."""
    return Fit(*map(sum, zip(*map(astuple, fits), strict=True)))


def entropy(logprobs: Mapping[int, float]) -> float:
    """Return the entropy in nats; all that is not listed counts as one token."""
    chances = [exp(logprob) for logprob in logprobs.values()]
    chances.append(max(0.0, 1 - sum(chances)))
    return -sum(chance * log(chance) for chance in chances if chance > 0)


def open_contexts(
    prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]], ask: Ask, count: int = 2
) -> list[list[int]]:
    """Return the contexts of different prompts after which most is left open: there a sample tells most.

    Candidates lie within the first tokens of a prompt's greedy text, the shortest prompts first.
    """
    starts, candidates = 4, 8
    order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))[:candidates]
    order = [number for number in order if len(texts[number]) >= DEPTH] or order[:1]
    within = [(number, at) for number in order for at in range(starts + DEPTH - 1)]
    contexts = [[*prompts[number], *texts[number][:at]] for number, at in within]
    openness = dict(zip(within, map(entropy, ask(contexts)), strict=True))
    best = []
    for number in order:
        sums = [sum(openness[number, at + i] for i in range(DEPTH)) for at in range(starts)]
        at = max(range(starts), key=sums.__getitem__)
        best.append((sums[at], [*prompts[number], *texts[number][:at]]))
    best.sort(key=lambda scored: -scored[0])
    return [context for _, context in best[:count]]


def judge_distribution(drafted: Fit, control: Fit, *, samples: int, accepted: int) -> Check:
    """Judge a sample, as FAILED only if it is off and the control is not.

    Args:
        control: of a sample drawn without the draft.
        accepted: drafted tokens in the sample.
    """
    if not drafted.freedom:
        return not_applicable(NAME, "the target is all but certain of what it says to these prompts")
    off, control_off = drafted.p <= LEAST_P, control.p <= LEAST_P
    details = [f"control, without the draft: {control}"]
    verdict = Verdict.FAILED if off and not control_off else Verdict.PASSED
    if control_off:
        verdict = Verdict.WARNING
        details.append(
            "The control fails as well: it is the engine's sampling, not the draft."
            if off
            else "Only the control fails: chance, or the engine's sampling; not the draft."
        )
    elif not off and not accepted:
        verdict = Verdict.WARNING
        details.append("No draft was accepted: only what follows rejected ones was tested.")
    said = f"{samples} at temperature 1: {drafted}; {accepted} drafted tokens accepted in them."
    figures = {
        "samples": samples, "accepted": accepted, "least_p": LEAST_P,
        "drafted": drafted.to_json(), "control": control.to_json(),
    }  # fmt: skip
    return Check(NAME, verdict, said, tuple(details), figures)
