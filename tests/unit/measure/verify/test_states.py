"""Replay against one state block per draft token: equal to the bit, or at a near-tie, or a fault."""

from __future__ import annotations

from tests.unit.measure.verify.toy import histogram
from vllm_eagle_ext.errors import HybridStateError
from vllm_eagle_ext.measure.engine.client import EngineFailedError
from vllm_eagle_ext.measure.engine.load import Answer, Measured
from vllm_eagle_ext.measure.verify.texts import Divergence, judge_failure, judge_states, other_scheme
from vllm_eagle_ext.measure.verify.verdicts import Verdict


def measured(accepted: int = 12) -> Measured:
    counted = histogram(20, [accepted, 3])
    return Measured(1.0, [Answer(1, [1, 2, 3], [1, 2], 0.1, 1.0, histogram=counted)])


def judged(theirs: Measured, *gaps: float):
    found = [Divergence(0, 1, (2, 5), gap) for gap in gaps]
    return judge_states(measured(), theirs, found, served="replay", bound=0.1)


def test_equal_to_the_bit():
    check = judged(measured())
    assert check.verdict is Verdict.PASSED
    assert check.said.startswith(
        "Served with replay: 1 of 1 texts equal those with one state block per draft token."
    )


def test_other_counters_of_equal_texts_are_a_warning():
    check = judged(measured(11))
    assert check.verdict is Verdict.WARNING
    assert "counters differ" in check.said
    assert "[20, 11, 3]" in check.details[1]


def test_texts_may_part_at_a_tie():
    assert judged(measured(11), 0.05).verdict is Verdict.PASSED
    assert judged(measured(), 0.5).verdict is Verdict.FAILED


def failure(said: str, tail: str = "log") -> EngineFailedError:
    return EngineFailedError(field="the engine", value=said, allowed="one that starts", remedy=tail)


def test_a_refusal_is_a_reason():
    refusal = HybridStateError(field="enable_lora", value=True, allowed="false", remedy="without")
    check = judge_failure(failure(f"HybridStateError: {refusal}"), "replay")
    assert check.verdict is Verdict.NOT_APPLICABLE
    assert "replay cannot be had here: enable_lora is True" in check.said


CORE = "RuntimeError: Engine core initialization failed. See root cause above."


def test_a_refusal_of_another_process_is_read_from_the_log():
    tail = (
        f"(EngineCore) ERROR HybridStateError: vllm-eagle-ext: enable_lora is True. Allowed: x\n{CORE}"
    )
    check = judge_failure(failure(CORE, tail), "replay")
    assert check.said.startswith("replay cannot be had here: enable_lora is True")


def test_a_log_line_of_ours_is_no_refusal():
    check = judge_failure(failure(CORE, "INFO vllm-eagle-ext: replay, one page"), "per_token")
    assert "cannot be had" not in check.said


def test_a_crash_says_nothing_about_the_draft():
    log = f"x\n(EngineCore) ERROR [core.py:9] ValueError: no memory for states\nTraceback\n{CORE}\n"
    check = judge_failure(failure(CORE), "per_token", log)
    assert check.verdict is Verdict.NOT_APPLICABLE
    assert check.said.endswith("ended: ValueError: no memory for states")


def test_a_crash_without_a_word():
    check = judge_failure(failure("exit status -6"), "per_token")
    assert (check.verdict, check.said[-14:]) == (Verdict.NOT_APPLICABLE, "exit status -6")


def test_other():
    assert (other_scheme("replay"), other_scheme("per_token")) == ("per_token", "replay")
