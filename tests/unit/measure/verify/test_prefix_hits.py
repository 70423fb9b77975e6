"""Second turns behind hits and computed anew: what is asked of an engine, and what is said of it."""

from __future__ import annotations

import pytest

from tests.unit.measure.verify.toy import VOCAB, ToyEngine
from vllm_eagle_ext.measure.engine.load import Answer, Measured
from vllm_eagle_ext.measure.verify.prefix_hits import (
    FEWER_ACCEPTED,
    NO_HITS,
    NOT_ANEW,
    SecondTurns,
    conversations,
    judge_turns,
    measure_turns,
)
from vllm_eagle_ext.measure.verify.texts import Divergence
from vllm_eagle_ext.measure.verify.verdicts import Check, Verdict

PROMPTS = [[number % VOCAB, 3, 5, 7, 1] for number in range(8)]
CACHE = {"block_size": 16, "max_model_len": 100}


def measured(engine: ToyEngine, cache=CACHE, prompts=PROMPTS, tokens: int = 9) -> SecondTurns | Check:
    return measure_turns(cache, prompts, lambda load, _: engine.load(load), tokens=tokens, k=3)


def test_second_turns_follow_the_first():
    engine = ToyEngine()
    turns = measured(engine)
    first, warm, anew = engine.loads
    assert [load.keeps_cache for load in engine.loads] == [False, True, False]
    assert warm.prompts == anew.prompts == turns.prompts
    answers = [ToyEngine()._answer(prompt, first).tokens for prompt in first.prompts]
    for number, (prompt, answer) in enumerate(zip(first.prompts, answers, strict=True)):
        begun = [*prompt, *answer]
        assert turns.prompts[number] == begun + PROMPTS[(number + 1) % 8][-8:]
    assert all(load.ignore_eos for load in engine.loads)


def test_conversations_hold_whole_blocks():
    found = conversations(PROMPTS, 32)
    assert len(found) == 6
    assert all(32 <= len(one) < 32 + 5 for one in found)
    assert len({tuple(one[:5]) for one in found}) == 6
    assert conversations(PROMPTS[:1], 12) == [PROMPTS[0] * 3]


@pytest.mark.parametrize(
    ("cache", "reason"),
    [
        (None, "without prefix caching"),
        ({"block_size": 528, "max_model_len": 1024}, "max_model_len of 1090, and it is 1024"),
    ],
)
def test_what_cannot_be_shown(cache, reason):
    engine = ToyEngine()
    found = measured(engine, cache)
    assert found.verdict is Verdict.NOT_APPLICABLE
    assert reason in found.said
    assert engine.loads == []


def answered(steps: list[int], cached: int = 0) -> Measured:
    answers = [Answer(40, [1] * sum(steps), steps, 0.1, 1.0, cached) for _ in range(6)]
    return Measured(1.0, answers)


def judged(warm: Measured, anew: Measured, *gaps: float) -> Check:
    turns = SecondTurns(16, [[1] * 41] * 6, warm, anew)
    found = [Divergence(at, 0, (1, 2), gap) for at, gap in enumerate(gaps)]
    return judge_turns(turns, found, bound=0.25)


def test_hits_are_counted():
    found = judged(answered([1, 2, 3], 16), answered([1, 2, 3]))
    assert found.verdict is Verdict.PASSED
    assert found.said.startswith(
        "96 of 246 tokens of 6 second turns were hits (192 in whole blocks of 16); 2.50 tokens per step "
        "after them, 2.50 anew. 6 of 6 texts equal those computed anew"
    )


def test_no_hit_is_warned_of():
    found = judged(answered([1, 2, 3]), answered([1, 2, 3]))
    assert found.verdict is Verdict.WARNING
    assert found.details == NO_HITS


def test_fewer_accepted_tokens_behind_hits_are_warned_of():
    worse = answered([1, *[2, 1] * 30], 16)
    found = judged(worse, answered([1, *[2, 3] * 30]))
    assert found.verdict is Verdict.WARNING
    assert found.details == FEWER_ACCEPTED
    best = answered([1, *[2, 3] * 30], 16)
    assert judged(best, answered([1, *[2, 1] * 30])).verdict is Verdict.PASSED


def test_turns_that_were_found_where_they_were_to_be_computed_are_warned_of():
    """A KV connector's blocks outlast the device's cache."""
    found = judged(answered([1, 2, 3], 16), answered([1, 2, 3], 16))
    assert found.verdict is Verdict.WARNING
    assert found.details == NOT_ANEW


@pytest.mark.parametrize(("gap", "verdict"), [(0.2, Verdict.PASSED), (0.5, Verdict.FAILED)])
def test_texts_may_diverge_at_a_near_tie(gap, verdict):
    found = judged(answered([1, 2, 3], 16), answered([1, 2, 3]), gap)
    assert found.verdict is verdict
    assert "5 of 6 texts equal" in found.said
