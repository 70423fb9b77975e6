"""`vllm-eagle verify --gate-layouts`: who wins, what is shown. The engines: tests/e2e/test_verify.py."""

from __future__ import annotations

import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.support.engine import ROOT
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.cli.verify.gate_layouts import Acceptance, LayoutVerdict, winner
from vllm_eagle_ext.cli.verify.gate_table import print_verdict


def rows(first: int, second: int, drafts: int = 200) -> tuple[Acceptance, Acceptance]:
    return (
        Acceptance("interleaved", drafts, (first, first // 2)),
        Acceptance("concat", drafts, (second, second // 2)),
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
def test_winner(first, second, drafts, expected):
    assert winner(rows(first, second, drafts)) == expected


def test_rates_and_tau():
    row = Acceptance("concat", 10, (8, 5, 1))
    assert row.rates == [0.8, 0.5, 0.1]
    assert row.tau == pytest.approx(2.4)


def shown(verdict: LayoutVerdict) -> str:
    console = Console(width=100, record=True)
    print_verdict(verdict, console)
    return console.export_text()


def test_the_option_to_paste_is_shown():
    text = shown(LayoutVerdict(rows(150, 20), "interleaved"))
    assert '{"eagle_ext": {"gate_layout": "interleaved"}}' in " ".join(text.split())
    assert "0.75" in text


def test_too_close_says_what_to_do():
    assert "--num-prompts" in shown(LayoutVerdict(rows(100, 99), None))


TINY = ["--target", str(ROOT / "examples/tiny/target"), "--gate-layouts", "--json"]


def error_of(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["verify", *arguments])
    assert result.exit_code == 2
    return json.loads(result.stdout)["error"]


def test_a_draft_that_cannot_be_read(tmp_path):
    assert "config.json" in error_of(str(tmp_path), *TINY)


def test_a_draft_without_a_gate_starts_no_engine():
    assert "gate of the draft" in error_of(str(ROOT / "examples/tiny/postnorm"), *TINY)


def test_a_draft_that_would_be_refused_starts_no_engine():
    other = ["--target", str(ROOT / "examples/tiny/hybrid_target"), *TINY[2:]]
    said = error_of(str(ROOT / "examples/tiny/gated"), *other)
    assert "Allowed" in said
    assert "log" not in said


def test_an_engine_that_fails_is_reported():
    engine = json.dumps({"max_model_len": -5})
    assert "interleaved" in error_of(str(ROOT / "examples/tiny/gated"), *TINY, "--engine", engine)


@pytest.mark.parametrize("name", ["model", "speculative_config", "additional_config", "logprobs_mode"])
def test_what_the_command_decides_itself(name):
    engine = json.dumps({name: {}})
    assert name in error_of(str(ROOT / "examples/tiny/gated"), *TINY, "--engine", engine)


def test_low_rates_are_not_called_a_success():
    assert "something else" in shown(LayoutVerdict(rows(36, 2, 600), "interleaved"))


def test_the_other_options_are_kept():
    text = shown(LayoutVerdict(rows(150, 20), "interleaved", {"aux_layers": "boundary"}))
    assert '"aux_layers": "boundary"' in " ".join(text.split())


@pytest.mark.parametrize(
    "arguments", [["--engine", "5"], ["--eagle-ext", "{"], ["--samples", "7"], ["--max-tokens", "2"]]
)
def test_usage(arguments):
    result = CliRunner().invoke(app, ["verify", "draft", "--target", "target", *arguments])
    assert result.exit_code == 2
