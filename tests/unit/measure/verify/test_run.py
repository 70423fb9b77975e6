"""All checks over engines that are toys: what runs, in which order, and what a fault does to it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from rich.console import Console

from tests.support.engine import TINY
from tests.unit.measure.verify.toy import VOCAB, ToyEngine, stage
from vllm_eagle_ext.cli.terminal import json_text
from vllm_eagle_ext.measure.engine.client import EngineFailedError
from vllm_eagle_ext.measure.prompts import PromptSet
from vllm_eagle_ext.measure.verify import run, texts
from vllm_eagle_ext.measure.verify.request import Verdict, VerifyRequest
from vllm_eagle_ext.measure.verify.table import print_verification
from vllm_eagle_ext.start.check import CheckRequest, run_check

pytestmark = pytest.mark.promise("`verify` fails a draft that is served wrongly")

PROMPTS = PromptSet("toys", [[number % VOCAB, 3] for number in range(8)], False, None)


def request(draft: str = "postnorm", target: str = "target", **options) -> VerifyRequest:
    check = CheckRequest(draft=str(TINY / draft), target=str(TINY / target), k=3, options=options)
    return VerifyRequest(
        check=check, engine={"seed": 3}, prompts=PROMPTS, max_tokens=21, reference=False
    )


@pytest.fixture
def engines(monkeypatch):
    """By the name of the engine; `started` lists what was started, with its arguments."""
    toys = {"started": [], "the engine with the draft": ToyEngine()}

    def start(name, arguments, log, _stage, *, plugin=True):
        toys["started"].append((name, arguments, plugin))
        log.write_text("INFO started\n")
        engine = toys.setdefault(name, ToyEngine())
        if isinstance(engine, Exception):
            raise engine
        return engine

    monkeypatch.setattr(run, "start", start)
    return toys


def verdicts(report) -> dict[str, str]:
    return {check.name: check.verdict.value for check in report.checks}


def test_a_lossless_engine_passes(engines, tmp_path):
    report = run.run_verify(request(), tmp_path, stage)
    assert verdicts(report) == {
        "preflight": "passed",
        "greedy texts": "passed",
        "sampled texts": "passed",
        "reference": "not applicable",
        "hybrid states": "not applicable",
        "acceptance": "passed",
    }
    assert report.exit_code == 0


def test_engines_and_their_arguments(engines, tmp_path):
    run.run_verify(request(norm_output=True), tmp_path, stage)
    (_, drafted, ours), (name, plain, without) = engines["started"]
    assert drafted["speculative_config"]["num_speculative_tokens"] == 3
    assert drafted["additional_config"] == {"eagle_ext": {"norm_output": True}}
    assert drafted["worker_extension_cls"].endswith(".StepProbe")
    assert "worker_extension_cls" not in plain
    assert drafted["seed"] == plain["seed"] == 3
    assert name == "the engine without a draft"
    assert "speculative_config" not in plain
    assert (ours, without) == (True, False)
    assert all("enable_prefix_caching" not in each for each in (drafted, plain))  # as vLLM decides


def test_engines_run_as_the_check_decided(engines, tmp_path):
    """On a CPU a hybrid target runs without prefix caching, with and without the draft."""
    report = run.run_verify(request("dflash", "hybrid_target"), tmp_path, stage)
    given = [arguments["enable_prefix_caching"] for _, arguments, _ in engines["started"]]
    assert given == [False] * len(given)
    assert len(given) >= 2
    assert report.settings["engine"]["enable_prefix_caching"] is False


FAULTS = [  # of the engine with the draft, the check that sees it, and its verdict
    ({"wrong_at": 0}, "greedy texts", "FAILED"),
    ({"wrong_at": 9}, "greedy texts", "FAILED"),
    ({"heat": 1.5}, "sampled texts", "FAILED"),
    ({"heat": 0.7}, "sampled texts", "FAILED"),
    ({"accepted": 15}, "acceptance", "warning"),
    ({"accepted": 0}, "acceptance", "FAILED"),
]


@pytest.mark.parametrize(("fault", "check", "verdict"), FAULTS, ids=str)
def test_a_fault_is_seen_by_its_check_alone(engines, tmp_path, fault, check, verdict):
    engines["the engine with the draft"] = ToyEngine(**fault)
    report = run.run_verify(request(), tmp_path, stage)
    seen = {name: value for name, value in verdicts(report).items() if value in ("FAILED", "warning")}
    assert seen[check] == verdict
    assert set(seen) <= {check, "sampled texts"}  # which follow a wrong token, too
    assert report.exit_code == int(verdict == "FAILED")
    shown = Console(width=100, record=True, soft_wrap=True)
    print_verification(report, shown)
    concluded = f"FAILED: {check}" if verdict == "FAILED" else f"Worth a look: {check}."
    assert concluded in shown.export_text()


def test_a_refused_draft_starts_no_engine(engines, tmp_path):
    report = run.run_verify(request("dflash"), tmp_path, stage)  # of another target
    assert engines["started"] == []
    assert report.exit_code == 1
    assert verdicts(report)["preflight"] == "FAILED"
    assert set(verdicts(report).values()) == {"FAILED", "not applicable"}


class TestHybrid:
    def run(self, tmp_path, **options):
        return run.run_verify(request("dflash", "hybrid_target", **options), tmp_path, stage)

    def test_a_third_engine_with_the_other_states(self, engines, tmp_path):
        report = self.run(tmp_path)
        assert verdicts(report)["hybrid states"] == "passed"
        name, arguments, _ = engines["started"][1]
        assert name == "the engine with one state block per draft token"
        assert arguments["additional_config"]["eagle_ext"]["hybrid_state"] == "per_token"
        assert len(engines["started"]) == 3

    def test_the_other_states_are_those_not_served(self, engines, tmp_path):
        engines["the engine with the draft"].state = "per_token"
        self.run(tmp_path)
        assert engines["started"][1][0] == "the engine with replay"

    def test_other_texts_fail(self, engines, tmp_path):
        engines["the engine with one state block per draft token"] = ToyEngine(wrong_at=9)
        report = self.run(tmp_path)
        assert verdicts(report)["hybrid states"] == "FAILED"
        assert verdicts(report)["greedy texts"] == "passed"
        assert report.exit_code == 1

    def test_no_states_to_compare(self, engines, tmp_path):
        engines["the engine with the draft"].state = None
        assert verdicts(self.run(tmp_path))["hybrid states"] == "not applicable"
        assert len(engines["started"]) == 2

    def test_a_refusal_is_no_failure(self, engines, tmp_path):
        said = "HybridStateError: vllm-eagle-ext: enable_lora is True. Allowed: .."
        error = EngineFailedError(field="engine", value=said, allowed="one", remedy="log")
        engines["the engine with one state block per draft token"] = error
        report = self.run(tmp_path)
        assert verdicts(report)["hybrid states"] == "not applicable"
        assert report.exit_code == 0


def test_what_is_shown_and_written(engines, tmp_path):
    engines["the engine with the draft"].wrong_at = 4
    report = run.run_verify(request(), tmp_path, stage)
    assert {check.verdict for check in report.checks} <= set(Verdict)
    shown = Console(width=100, record=True, soft_wrap=True)
    print_verification(report, shown)
    text = shown.export_text()
    assert "FAILED: greedy texts." in text
    assert max(map(len, text.splitlines()[1:])) <= 100
    for check in report.checks:
        assert check.name in text
    written = json.loads(json_text(asdict(report), report.exit_code))
    assert written["exit_code"] == 1
    assert [check["verdict"] for check in written["checks"]] == list(verdicts(report).values())
    settings = written["settings"]
    assert (settings["num_prompts"], settings["samples"], settings["tie_gap"]) == (8, 1000, 0.25)
    assert "torch" in settings["versions"]


def test_what_a_refused_draft_needs_is_said(engines, tmp_path):
    """The remedy as well: `vllm-eagle check` need not be run for it."""
    shown = Console(width=100, record=True, soft_wrap=True)
    print_verification(run.run_verify(request("dflash"), tmp_path, stage), shown)
    text = shown.export_text()
    problem = run_check(request("dflash").check).inspection.causes[0].problem
    line = " ".join(text.split())
    assert problem.allowed in line
    assert f"to do: {problem.remedy}" in line
    assert "and 4 further errors follow from it" in line


def test_a_tie_bound_by_dtype():

    asked = request()
    assert texts.tie_bound(asked) == 0.25
    assert texts.tie_bound(replace(asked, engine={"dtype": "float32"})) == 1e-3
    assert texts.tie_bound(replace(asked, tie_gap=0.5)) == 0.5
