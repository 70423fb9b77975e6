"""Replays an engine's own greedy texts through the Hugging Face target and the reference drafter.

Both sides see the same text, so that contexts cannot diverge. The engine's n-th draft of a request
starts at a row that follows from what was accepted before: after a draft with a accepted tokens, the
next one starts a+1 rows later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedModel

from vllm_eagle_ext.measure.reference.eagle3 import Reference
from vllm_eagle_ext.measure.reference.published import accepted_length, residual_stream

# The engine drafts in bf16 and the reference in fp32: where the reference's first two choices lie
# closer than this in logits, either may win, and the two chains may go apart from there on. One bf16
# step is 0.03 to 0.06 at the size of these logits.
TIE_MARGIN = 0.05
MOST_NEAR_TIES = 0.25  # of the drafts: the equal shares rest on the others


@dataclass
class Comparison:
    k: int
    chained: bool = True  # a draft's token depends on those before it
    drafts: int = 0
    engine_accepted: list[int] = field(default_factory=list)
    reference_accepted: list[int] = field(default_factory=list)
    equal: list[int] = field(default_factory=list)  # token ids, ties apart
    compared: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for counts in (self.engine_accepted, self.reference_accepted, self.equal, self.compared):
            counts.extend([0] * self.k)

    @property
    def engine_acceptance(self) -> list[float]:
        return [count / self.drafts for count in self.engine_accepted]

    @property
    def reference_acceptance(self) -> list[float]:
        return [count / self.drafts for count in self.reference_accepted]

    @property
    def equal_share(self) -> list[float]:
        return [same / max(1, all_) for same, all_ in zip(self.equal, self.compared, strict=True)]

    @property
    def tie_share(self) -> list[float]:
        return [1 - count / self.drafts for count in self.compared]

    def lines(self) -> list[str]:
        def row(values: Sequence[float]) -> str:
            return " ".join(f"{value:.3f}" for value in values)

        return [
            f"drafts compared       {self.drafts}",
            f"acceptance, engine    {row(self.engine_acceptance)}",
            f"acceptance, reference {row(self.reference_acceptance)}",
            f"equal token ids       {row(self.equal_share)}",
            f"ties set apart        {row(self.tie_share)}",
        ]


def replay(
    target: PreTrainedModel,
    reference: Reference,
    layer_ids: Sequence[int],
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    drafts: Sequence[Sequence[Sequence[int]]],
    k: int,
    *,
    chained: bool = True,
) -> Comparison:
    """Compare every draft whose k verified tokens lie inside the text."""
    result = Comparison(k, chained)
    for prompt, output, recorded in zip(prompts, outputs, drafts, strict=True):
        tokens = [*prompt, *output]
        rows = reference.true_rows(tokens, residual_stream(target, tokens, layer_ids))
        start = len(prompt) - 1
        for drafted in recorded:
            if start + 2 + k > len(tokens):
                break
            wanted = tokens[start + 2 : start + 2 + k]
            _compare_one(result, reference, rows, start, drafted, wanted)
            start += accepted_length(drafted, wanted) + 1
    return result


def _compare_one(result, reference, rows, start, drafted, wanted) -> None:  # type: ignore[no-untyped-def]
    own = reference.draft(start, result.k, rows)
    result.drafts += 1
    for position in range(accepted_length(drafted, wanted)):
        result.engine_accepted[position] += 1
    for position in range(accepted_length(own.tokens, wanted)):
        result.reference_accepted[position] += 1
    for position in range(result.k):
        first = 0 if result.chained else position
        if min(own.margins[first : position + 1]) >= TIE_MARGIN:
            result.compared[position] += 1
            result.equal[position] += own.tokens[position] == drafted[position]


def compare(result, target, reference, layer_ids, prompts, k, *, chained=True) -> Comparison:  # type: ignore[no-untyped-def]
    """An engine's result, of as many of its texts as there are prompts, with the reference."""
    texts = zip(prompts, result["tokens"], result["drafts"], strict=False)
    comparison = replay(target, reference, layer_ids, *zip(*texts, strict=True), k, chained=chained)
    print("", *comparison.lines(), sep="\n")
    assert max(comparison.tie_share) <= MOST_NEAR_TIES
    return comparison


def assert_same_drafter(
    comparison: Comparison, *, drafts: int, bound: float, equal_ids: float = 0.97
) -> None:
    assert comparison.drafts >= drafts
    both = zip(comparison.engine_acceptance, comparison.reference_acceptance, strict=True)
    assert all(abs(engine - reference) <= bound for engine, reference in both)
    assert min(comparison.equal_share) >= equal_ids
