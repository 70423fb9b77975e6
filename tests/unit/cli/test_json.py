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
        ("convert", "nowhere/at/all", "out"),
    ],
    ids=lambda words: " ".join(words[:2])[-30:],
)
def test_version_and_exit_code(words):
    result = runner.invoke(app, [*words, "--json"])
    doc = json.loads(result.stdout)
    assert doc["schema_version"] == SCHEMA
    assert doc["exit_code"] == result.exit_code


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
        (("selftest", "--nope"), "--nope"),
        (("convert", *PAIR), "OUT"),
        (("nope",), "nope"),
    ],
    ids=lambda value: " ".join(value).replace(str(TINY), "") if isinstance(value, tuple) else None,
)
def test_what_is_typed_wrongly(words, said):
    plain, as_json = runner.invoke(app, list(words)), runner.invoke(app, [*words, "--json"])
    assert (plain.exit_code, plain.stdout) == (2, "")
    assert (as_json.exit_code, as_json.stderr) == (2, "")
    doc = json.loads(as_json.stdout)
    assert (doc["schema_version"], doc["exit_code"]) == (SCHEMA, 2)
    assert said.lower() in doc["error"].lower()
    assert said.lower() in " ".join(plain.stderr.split()).lower()


@pytest.mark.parametrize(
    ("draft", "code", "said"),
    [
        ("postnorm", 0, ("command", "vllm serve ")),
        ("native", 0, ("reason", "vLLM reads this draft as it is meant by itself")),
        ("gated", 1, ("reason", "DRAFT is ")),
    ],
)
def test_what_convert_did(tmp_path, draft, code, said):
    words = ["convert", str(TINY / draft), str(tmp_path / "out"), *PAIR[1:], "--json"]
    doc = json.loads(runner.invoke(app, words).stdout)
    key, text = said
    assert (doc["exit_code"], text in doc[key]) == (code, True)
    assert list(doc["files"]) == (["model.safetensors"] if key == "command" else [])


def test_the_revisions_reach_bench(monkeypatch):
    typed = {}
    monkeypatch.setattr(
        "vllm_eagle_ext.measure.bench.run.run_bench", lambda given, *_: typed.update(given)
    )
    runner.invoke(app, ["bench", *PAIR, "--revision", "a", "--target-revision", "b"])
    assert (typed["revision"], typed["engine"]) == ("a", {"revision": "b"})


@pytest.mark.parametrize("columns", ["0", "000", ""])
def test_a_terminal_of_no_columns(columns):
    result = CliRunner(env={"COLUMNS": columns}).invoke(app, ["check", *PAIR, "--platform", "cuda"])
    assert result.exit_code == 0
    assert "Would be served. Start it with:" in result.stdout
    assert "family" in result.stdout
