"""What holds for every `--json`: one object, its version and the exit status, whatever is typed."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.support.engine import TINY
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.cli.terminal import SCHEMA

PAIR = (str(TINY / "postnorm"), "--target", str(TINY / "target"))
runner = CliRunner()


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("check", *PAIR),
        ("check", "nowhere/at/all"),
        ("plan", *PAIR, "-k", "3", "--gpu-mem", "80"),
        ("plan", "--target", str(TINY / "hybrid_target"), "-k", "3,7", "--gpu-mem", "80"),
        ("plan", "nowhere/at/all", "-k", "3"),
        ("verify", "nowhere/at/all"),
        ("bench", *PAIR, "--engine", '{"model": "other"}'),
        ("vocabulary", "nowhere/at/all"),
    ],
    ids=lambda words: " ".join(words[:2])[-30:],
)
def test_version_and_exit_code(words):
    result = runner.invoke(app, [*words, "--json"])
    found = json.loads(result.stdout)
    assert found["schema_version"] == SCHEMA
    assert found["exit_code"] == result.exit_code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("check", *PAIR, "-k", "0"), "'-k'"),
        (("check", *PAIR, "--eagle-ext", "{"), "--eagle-ext"),
        (("check", *PAIR, "--nope"), "--nope"),
        (("check",), "DRAFT"),
        (("plan", *PAIR, "-k", "x"), "-k"),
        (("plan", *PAIR), "-k"),
        (("plan", "-k", "3"), "--target"),
        (("plan", *PAIR, "-k", "3", "--gpu-mem", "nan"), "--gpu-mem"),
        (("bench", *PAIR, "--schedule", "--context", "a"), "--context"),
        (("verify", "--target", "t"), "DRAFT"),
        (("vocabulary", *PAIR, "--entries", "1"), "--entries"),
        (("status", "more"), "more"),
        (("nope",), "nope"),
    ],
    ids=lambda value: " ".join(value).replace(str(TINY), "") if isinstance(value, tuple) else None,
)
def test_what_is_typed_wrongly(words, said):
    """As JSON where that was asked for, and as ever where it was not."""
    plain, told = runner.invoke(app, list(words)), runner.invoke(app, [*words, "--json"])
    assert (plain.exit_code, plain.stdout) == (2, "")
    assert (told.exit_code, told.stderr) == (2, "")
    found = json.loads(told.stdout)
    assert (found["schema_version"], found["exit_code"]) == (SCHEMA, 2)
    assert said.lower() in found["error"].lower()
    assert said.lower() in " ".join(plain.stderr.split()).lower()


def test_a_file_of_that_name_asks_for_no_json():
    result = runner.invoke(app, ["selftest", "--json", "x", "--nope"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "No such option: --nope" in result.stderr


@pytest.mark.parametrize("columns", ["0", "000", ""])
def test_a_terminal_of_no_columns(columns):
    result = CliRunner(env={"COLUMNS": columns}).invoke(app, ["check", *PAIR, "--platform", "cuda"])
    assert result.exit_code == 0
    assert "Would be served. Start it with:" in result.stdout
    assert "family" in result.stdout
