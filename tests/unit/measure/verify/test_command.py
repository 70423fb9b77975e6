"""What `vllm-eagle verify` leaves behind, and where it stops before engines start."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from tests.support.engine import TINY
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.measure.verify import run
from vllm_eagle_ext.measure.verify.request import Verdict, VerifyReport, not_applicable
from vllm_eagle_ext.measure.verify.table import Logs


def asked(*arguments: str, monkeypatch):
    """The request of a command line."""
    requests = []

    def run_verify(request, *_):
        requests.append(request)
        return VerifyReport("d", "t", request.k, ())

    monkeypatch.setattr(run, "run_verify", run_verify)
    given = [str(TINY / "postnorm"), "--target", str(TINY / "target"), "--json"]
    result = CliRunner().invoke(app, ["verify", *given, *arguments])
    assert result.exit_code == 0, result.output
    return requests[0]


def test_quick(monkeypatch):
    """All that is typed wins over it."""
    quick = asked("--quick", monkeypatch=monkeypatch)
    assert (len(quick.prompts.ids), quick.max_tokens, quick.samples) == (6, 48, 300)
    assert quick.engine["enforce_eager"] is True
    typed = ["--num-prompts", "3", "--max-tokens", "64", "--engine", '{"enforce_eager": false}']
    other = asked("--quick", *typed, monkeypatch=monkeypatch)
    assert (len(other.prompts.ids), other.max_tokens, other.samples) == (3, 64, 300)
    assert other.engine["enforce_eager"] is False
    usual = asked(monkeypatch=monkeypatch)
    assert (len(usual.prompts.ids), usual.max_tokens, usual.samples) == (20, 64, 1000)
    assert dict(usual.engine) == {}


def test_the_check_is_of_the_engine_that_starts(monkeypatch):
    engine = {
        "tensor_parallel_size": 2, "enable_prefix_caching": False, "max_model_len": 512,
        "download_dir": "d",
    }  # fmt: skip
    check = asked("--engine", json.dumps(engine), monkeypatch=monkeypatch).check
    named = ("tensor_parallel_size", "enable_prefix_caching", "max_model_len")
    assert [check.engine[name] for name in named] == [2, False, 512]
    assert check.download_dir == "d"


@pytest.mark.parametrize("ranks", [0, "2", True, None])
def test_no_number_of_ranks(report, ranks):
    result = verify("--engine", json.dumps({"tensor_parallel_size": ranks}))
    assert (result.exit_code, report.calls) == (2, 0)
    assert "tensor_parallel_size" in json.loads(result.stdout)["error"]


@pytest.mark.parametrize(
    ("logged", "passed", "error", "stays"),
    [(True, True, None, False), (True, False, None, True), (True, False, KeyboardInterrupt, True),
     (False, False, None, False)],
)  # fmt: skip
def test_logs_stay_unless_all_passed(capsys, logged, passed, error, stays):
    with suppress(KeyboardInterrupt), Logs() as kept:
        if logged:
            (kept.folder / "log").write_text("x")
        kept.passed = passed
        if error:
            raise error
    assert kept.folder.exists() == stays
    assert (str(kept.folder) in capsys.readouterr().err) == stays


def verify(*arguments: str):
    given = [str(TINY / "postnorm"), "--target", str(TINY / "target"), "--num-prompts", "2", "--json"]
    return CliRunner().invoke(app, ["verify", *given, *arguments])


@pytest.fixture
def report(monkeypatch):
    """What the engines are said to have found."""
    fake = SimpleNamespace(passed=True, calls=0)

    def run_verify(request, folder, _stage):
        fake.calls += 1
        (folder / "log").write_text("x")
        check = not_applicable("one", "why")
        checks = (
            check,
            replace(check, name="two", verdict=Verdict.PASSED if fake.passed else Verdict.FAILED),
        )
        return VerifyReport("draft", "target", request.k, checks, {})

    monkeypatch.setattr(run, "run_verify", run_verify)
    return fake


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 1)])
def test_what_is_written_is_what_is_printed(report, tmp_path, passed, code):
    report.passed, out = passed, tmp_path / "found.json"
    result = verify("--out", str(out))
    assert result.exit_code == code
    assert json.loads(result.stdout) == json.loads(out.read_text())
    assert ("vllm-eagle-verify-" in result.stderr) == (not passed)


@pytest.mark.parametrize("name", ["missing/found.json", "."])
def test_a_file_that_cannot_be_written_starts_no_engine(report, tmp_path, name):
    result = verify("--out", str(tmp_path / name))
    assert (result.exit_code, report.calls) == (2, 0)
    assert "--out" in json.loads(result.stdout)["error"]


def test_what_was_found_is_printed_before_it_is_written(tmp_path, monkeypatch):
    def replace(*_):
        raise OSError("disk full")

    monkeypatch.setattr(type(tmp_path), "replace", replace)
    monkeypatch.setattr(run, "run_verify", lambda request, *_: VerifyReport("d", "t", request.k, ()))
    result = verify("--out", str(tmp_path / "found.json"))
    assert result.exit_code == 2
    assert json.loads(result.stdout)["exit_code"] == 0
    assert "disk full" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda sig: sig.name)
def test_a_signal_ends_it_as_ctrl_c(monkeypatch, number):
    def run_verify(_request, folder, _stage):
        (folder / "log").write_text("x")
        os.kill(os.getpid(), number)
        time.sleep(10)

    monkeypatch.setattr(run, "run_verify", run_verify)
    try:
        result = verify()
    finally:
        for sig in (signal.SIGTERM, signal.SIGHUP):  # ignored from then on, as a process that ends
            signal.signal(sig, signal.SIG_DFL)
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"] == "Interrupted."
    assert "The engines' logs: " in result.stderr
