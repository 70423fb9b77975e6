"""`verify --gate-layouts` and `--feedback`: which reading wins, what is shown. Engines: tests/e2e."""

from __future__ import annotations

import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.support.drafts import inspect, valid_draft
from tests.support.engine import ROOT
from tests.unit.measure.verify.toy import ToyEngine
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.measure.verify import run
from vllm_eagle_ext.measure.verify.readings import FEEDBACK, GATE_LAYOUT, Acceptance, Comparison
from vllm_eagle_ext.measure.verify.table import print_answer


def layouts(first: int, second: int, drafts: int = 200, **options) -> Comparison:
    return Comparison(
        GATE_LAYOUT,
        (
            Acceptance("interleaved", drafts, (first, first // 2)),
            Acceptance("concat", drafts, (second, second // 2)),
        ),
        options,
    )


def feedback(normed: tuple[int, ...], raw: tuple[int, ...], drafts: int = 600, **options) -> Comparison:
    return Comparison(
        FEEDBACK, (Acceptance(True, drafts, normed), Acceptance(False, drafts, raw)), options
    )


@pytest.mark.parametrize(
    ("first", "second", "drafts", "expected"),
    [
        (150, 20, 200, "interleaved"),
        (20, 150, 200, "concat"),
        (100, 99, 200, None),
        (3, 0, 4, None),  # too few to tell
        (0, 0, 200, None),
    ],
)
def test_the_layout_is_told_by_the_first_token(first, second, drafts, expected):
    answer = layouts(first, second, drafts)
    assert answer.to_json()["winner"] == expected
    assert answer.to_json()["position"] == 1


@pytest.mark.parametrize(
    ("normed", "raw", "expected"),
    [
        ((400, 300, 220), (400, 180, 60), True),
        ((400, 180, 60), (400, 300, 220), False),
        ((400, 300, 220), (400, 299, 150), None),  # a later position alone does not decide
        ((500, 300, 220), (300, 180, 132), None),  # the first token is another, those behind it alike
        ((0, 0, 0), (0, 0, 0), None),
        ((3, 3, 3), (3, 0, 0), None),  # too few to tell
    ],
)
def test_the_feedback_is_told_by_the_second_token(normed, raw, expected):
    answer = feedback(normed, raw)
    assert answer.to_json()["winner"] is expected
    assert answer.to_json()["position"] == 2


@pytest.mark.parametrize(
    ("first", "second", "low"),
    [(150, 20, False), (90, 20, False), (60, 20, True), (0, 0, True)],  # of 200: lengths 2.1, 1.7, 1.4
)
def test_low_is_as_verify_has_it(first, second, low, capsys):
    """Also where the two are too close to tell."""
    answer = layouts(first, second)
    print_answer(answer, Console(width=120))
    assert (answer.is_low, "Both are low" in capsys.readouterr().out) == (low, low)


def test_a_share_and_its_error():
    row = Acceptance(True, 1000, (500, 400, 1))
    assert row.share(0) == 0.5
    assert row.share(1) == 0.8
    assert row.error(1) == pytest.approx((0.8 * 0.2 / 500) ** 0.5, rel=0.02)
    assert Acceptance(True, 5, (0, 0)).share(1) == 0
    assert row.rates == [0.5, 0.4, 0.001]
    assert row.acceptance_length == pytest.approx(1.901)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (layouts(150, 20), ('{"eagle_ext": {"gate_layout": "interleaved"}}', "0.75")),
        (layouts(100, 99), ("--num-prompts",)),
        (layouts(36, 2, 600), ("something else",)),
        (layouts(150, 20, aux_layers="input"), ('"aux_layers": "input"',)),
        (
            feedback((400, 180, 60), (400, 300, 220)),
            ('{"eagle_ext": {"norm_output": false}}', "0.750 ± 0.022",
             "Before position 2 both draft the same tokens."),
        ),
    ],
    ids=["the option to paste", "too close", "low rates", "other options", "the feedback to paste"],
)  # fmt: skip
def test_what_is_shown(answer, words):
    console = Console(width=100, record=True)
    print_answer(answer, console)
    text = " ".join(console.export_text().split())
    assert [word for word in words if word not in text] == []


TINY = ["--target", str(ROOT / "examples/tiny/target"), "--json"]
GATE, FED = [*TINY, "--gate-layouts"], [*TINY, "--feedback"]


def error_of(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["verify", *arguments])
    assert result.exit_code == 2, result.output
    return json.loads(result.stdout)["error"]


@pytest.mark.parametrize("asked", [GATE, FED])
def test_a_draft_that_cannot_be_read(tmp_path, asked):
    assert "config.json" in error_of(str(tmp_path), *asked)


@pytest.mark.parametrize(
    ("draft", "asked", "words"),
    [
        ("postnorm", GATE, "gate_layout of the draft"),
        ("postnorm", [*FED, "-k", "1"], "num_speculative_tokens is 1. Allowed: at least 2"),
        ("gated", [*GATE, "--feedback"], "both"),
        ("gated", [*GATE, "--engine", '{"max_model_len": -5}'], "interleaved"),  # an engine that fails
        *(
            ("gated", [*GATE, "--engine", json.dumps({name: {}})], name)
            for name in ("model", "speculative_config", "logprobs_mode")
        ),
    ],
    ids=str,
)
def test_what_is_refused(draft, asked, words):
    assert words in error_of(str(ROOT / "examples/tiny" / draft), *asked)


@pytest.mark.parametrize("asked", [GATE, FED])
def test_a_draft_that_would_be_refused_starts_no_engine(asked):
    other = ["--target", str(ROOT / "examples/tiny/hybrid_target"), *asked[2:]]
    said = error_of(str(ROOT / "examples/tiny/gated"), *other)
    assert "Allowed" in said
    assert "log" not in said


@pytest.fixture
def engines(monkeypatch):
    """What is started, with its options; the raw state is the wrong one to feed back."""
    started = []

    def start(name, arguments, log, _stage, *, plugin=True):
        log.write_text("INFO started\n")
        options = arguments["additional_config"]["eagle_ext"]
        started.append((name, options, arguments))
        return ToyEngine(accepted=400, behind=300 if options["norm_output"] else 100)

    monkeypatch.setattr(run, "start", start)
    return started


def test_both_readings_are_measured(engines):
    given = ["--num-prompts", "20", "-k", "2", "--eagle-ext", '{"aux_layers": "output"}']
    result = CliRunner().invoke(app, ["verify", str(ROOT / "examples/tiny/postnorm"), *FED, *given])
    assert result.exit_code == 0, result.output
    doc = json.loads(result.stdout)
    assert (doc["option"], doc["winner"]) == ("norm_output", True)
    assert [row["value"] for row in doc["measured"]] == [True, False]
    names, options, _ = zip(*engines, strict=True)
    assert names == ("the engine with norm_output true", "the engine with norm_output false")
    assert [ext["norm_output"] for ext in options] == [True, False]
    assert all(ext["aux_layers"] == "output" for ext in options)


@pytest.mark.parametrize(
    ("family", "fed"),
    [("native", True), ("post-norm", True), ("mla", True), ("p-eagle", False), ("dflash", False)],
)
def test_who_feeds_a_state_back(tmp_path, family, fed):
    assert FEEDBACK.is_open(inspect(valid_draft(family), tmp_path).spec) is fed
