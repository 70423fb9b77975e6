"""Greedy texts: where they diverge, and what counts as a near-tie. With replay and one state block per
draft token: equal to the bit, or at a near-tie, or a fault."""

from __future__ import annotations

import math

import pytest

from tests.unit.measure.verify.toy import histogram
from vllm_eagle_ext.errors import HybridStateError
from vllm_eagle_ext.measure.engine.client import EngineFailedError
from vllm_eagle_ext.measure.engine.load import Answer, Measured
from vllm_eagle_ext.measure.verify.request import Check, Verdict
from vllm_eagle_ext.measure.verify.texts import (
    TIE_GAP,
    Divergence,
    divergences,
    judge_failure,
    judge_states,
    judge_texts,
    with_gaps,
)

MINE = [[1, 2, 3], [4, 5, 6], [7, 8]]
PROMPTS = [[10], [11, 12], [13]]


@pytest.mark.parametrize(
    ("theirs", "divergence"),
    [([[1, 2, 3], [4, 9, 9], [7, 8]], (1, 1, (5, 9))), ([[1, 2, 3], [4, 5, 6], [7]], (2, 1, (8, None)))],
    ids=["another token", "an early end"],
)
def test_divergences_are_the_first_difference(theirs, divergence):
    assert [(d.prompt, d.at, d.tokens) for d in divergences(MINE, theirs)] == [divergence]


def test_gaps_are_asked_after_the_common_prefix():
    asked = []

    def ask(contexts):
        asked.extend(contexts)
        return [{5: -0.7, 9: -0.75}]

    diverged = with_gaps([Divergence(1, 1, (5, 9))], PROMPTS, MINE, ask)
    assert asked == [[11, 12, 4]]
    assert diverged[0].gap == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("tokens", "row", "gap"),
    [
        ((5, 9), {5: -0.1, 9: -0.3}, 0.2),
        ((9, 5), {5: -0.1, 9: -0.3}, 0.2),
        ((5, 9), {1: -0.1, 5: -0.2, 9: -0.3}, 0.2),  # neither is the likeliest
        ((5, 9), {1: -0.69, 2: -0.70}, math.inf),  # a near-tie, but not of these two
        ((5, None), {5: -0.69, 2: -0.70}, math.inf),
    ],
)
def test_gap(tokens, row, gap):
    diverged = with_gaps([Divergence(0, 0, tokens)], PROMPTS, MINE, lambda _: [row])
    assert diverged[0].gap == pytest.approx(gap)


def judged(*gaps, bound=0.1):
    diverged = [Divergence(number, 1, (5, 9), gap) for number, gap in enumerate(gaps)]
    return judge_texts("greedy texts", diverged, MINE, bound=bound)


def test_equal_texts_pass():
    assert judged().verdict is Verdict.PASSED
    assert "3 of 3 texts equal" in judged().said
    assert with_gaps([], PROMPTS, MINE, lambda _: pytest.fail("asked")) == []


def test_near_ties_pass_and_are_counted_apart():
    check = judged(0.02, 0.1)
    assert check.verdict is Verdict.PASSED
    assert (check.figures["equal"], check.figures["near_ties"]) == (1, 2)
    assert "gap up to 0.100" in check.said


def test_two_steps_of_bf16_are_a_near_tie():
    assert TIE_GAP == 0.25
    assert judged(0.2500001, bound=TIE_GAP).verdict is Verdict.PASSED
    assert judged(0.26, bound=TIE_GAP).verdict is Verdict.FAILED


@pytest.mark.parametrize("gap", [0.11, 3.0, math.inf])
def test_a_gap_beyond_the_bound_fails(gap):
    check = judged(0.02, gap)
    assert check.verdict is Verdict.FAILED
    assert "prompt 2, token 2: 5 and 9" in check.details[0]
    assert len(check.figures["diverged"]) == 1


def measured(accepted: int = 12) -> Measured:
    counted = histogram(20, [accepted, 3])
    return Measured(1.0, [Answer(1, [1, 2, 3], [1, 2], 1.0, histogram=counted)])


def judged_states(theirs: Measured, *gaps: float):
    diverged = [Divergence(0, 1, (2, 5), gap) for gap in gaps]
    return judge_states(measured(), theirs, diverged, served="replay", bound=0.1)


def test_states_equal_to_the_bit():
    check = judged_states(measured())
    assert check.verdict is Verdict.PASSED
    assert check.said.startswith(
        "Served with replay: 1 of 1 texts equal those with one state block per draft token."
    )


def test_other_counters_of_equal_texts_are_a_warning():
    check = judged_states(measured(11))
    assert check.verdict is Verdict.WARNING
    assert "counters differ" in check.said
    assert "[20, 11, 3]" in check.details[1]


def test_texts_may_part_at_a_tie():
    assert judged_states(measured(11), 0.05).verdict is Verdict.PASSED
    assert judged_states(measured(), 0.5).verdict is Verdict.FAILED


def judged_failure(said: str, scheme: str, log: str = "log") -> Check:
    error = EngineFailedError(field="the engine", value=said, allowed="one that starts", remedy="see")
    return judge_failure(error, scheme, log)


def test_a_refusal_is_a_reason():
    refusal = HybridStateError(field="enable_lora", value=True, allowed="false", remedy="without")
    check = judged_failure(f"HybridStateError: {refusal}", "replay")
    assert check.verdict is Verdict.NOT_APPLICABLE
    assert "replay cannot be had here: enable_lora is True" in check.said


CORE = "RuntimeError: Engine core initialization failed. See root cause above."


def test_a_refusal_of_another_process_is_read_from_the_log():
    log = f"(EngineCore) ERROR HybridStateError: vllm-eagle-ext: enable_lora is True. Allowed: x\n{CORE}"
    check = judged_failure(CORE, "replay", log)
    assert check.said.startswith("replay cannot be had here: enable_lora is True")


def test_a_log_line_of_ours_is_no_refusal():
    check = judged_failure(CORE, "per_token", "INFO vllm-eagle-ext: replay, one page")
    assert "cannot be had" not in check.said


def test_a_crash_says_nothing_about_the_draft():
    log = f"x\n(EngineCore) ERROR [core.py:9] ValueError: no memory for states\nTraceback\n{CORE}\n"
    check = judged_failure(CORE, "per_token", log)
    assert check.verdict is Verdict.NOT_APPLICABLE
    assert check.said.endswith("ended: ValueError: no memory for states")


def test_a_crash_without_a_word():
    check = judged_failure("exit status -6", "per_token")
    assert (check.verdict, check.said[-14:]) == (Verdict.NOT_APPLICABLE, "exit status -6")
