"""Replay against slots: equal to the bit, or at a tie, or a fault."""

from __future__ import annotations

import pytest

from vllm_eagle_ext.cli.engine.client import EngineFailedError
from vllm_eagle_ext.cli.engine.load import Answer, Measured
from vllm_eagle_ext.cli.verify.report import Verdict
from vllm_eagle_ext.cli.verify.states import judge_failure, judge_states, other, scheme_of
from vllm_eagle_ext.cli.verify.texts import Parting
from vllm_eagle_ext.errors import HybridStateError


def measured(accepted: int = 12) -> Measured:
    return Measured(1.0, [Answer(1, [1, 2, 3], [1, 2], 0.1, 1.0)], 10, 30, [accepted, 3])


def judged(theirs: Measured, *gaps: float):
    found = [Parting(0, 1, (2, 5), gap) for gap in gaps]
    return judge_states(measured(), theirs, found, served="replay", bound=0.1)


def test_equal_to_the_bit():
    check = judged(measured())
    assert check.verdict is Verdict.PASSED
    assert check.said.startswith("Served with replay: 1 of 1 texts equal those with slots.")


def test_other_counters_fail_where_texts_are_equal():
    check = judged(measured(11))
    assert check.verdict is Verdict.FAILED
    assert "counters differ" in check.said


def test_texts_may_part_at_a_tie():
    assert judged(measured(11), 0.05).verdict is Verdict.PASSED
    assert judged(measured(), 0.5).verdict is Verdict.FAILED


def failure(said: str) -> EngineFailedError:
    return EngineFailedError(field="the engine", value=said, allowed="one that starts", remedy="log")


def test_a_refusal_is_a_reason():
    refusal = HybridStateError(field="enable_lora", value=True, allowed="false", remedy="without")
    check = judge_failure(failure(f"HybridStateError: {refusal}"), "replay")
    assert check.verdict is Verdict.NOT_APPLICABLE
    assert "replay cannot be had here: enable_lora is True" in check.said


def test_a_crash_is_a_fault():
    assert judge_failure(failure("RuntimeError: Engine core died"), "slots").verdict is Verdict.FAILED


@pytest.mark.parametrize(
    ("options", "said", "scheme"),
    [
        ({"hybrid_state": "slots"}, "", "slots"),
        (
            {},
            "x\nINFO Recurrent state of Qwen3_5ForCausalLM: replay, one state page per request;",
            "replay",
        ),
        ({"hybrid_state": "auto"}, "Recurrent state of A: slots, 3 pages; 2 draft tokens", "slots"),
        ({}, "nothing", None),
    ],
)
def test_the_scheme_is_read_from_the_log(tmp_path, options, said, scheme):
    log = tmp_path / "log"
    log.write_text(said)
    assert scheme_of(options, log) == scheme


def test_the_log_has_the_line_that_is_looked_for(monkeypatch, tmp_path):
    from types import SimpleNamespace

    from vllm_eagle_ext.intake import hybrid

    said = []
    monkeypatch.setattr(hybrid, "log_once", lambda _logger, _level, line: said.append(line))
    monkeypatch.setattr(hybrid.metrics, "publish_state", lambda *_, **__: None)
    situation = SimpleNamespace(k=2, platform="cpu", runner="v2", prefix_caching=False)
    monkeypatch.setattr(hybrid, "_situation", lambda *_: situation)
    monkeypatch.setattr(hybrid, "choose", lambda *_: (False, "why"))
    target = SimpleNamespace(architecture="Qwen3_5ForCausalLM")
    hybrid.apply_hybrid_state(None, target, None, SimpleNamespace(hybrid_state="auto"))
    (tmp_path / "log").write_text(f"(EngineCore pid=1) INFO {said[0]}\n")
    assert scheme_of({}, tmp_path / "log") == "slots"


def test_other():
    assert (other("replay"), other("slots")) == ("slots", "replay")
