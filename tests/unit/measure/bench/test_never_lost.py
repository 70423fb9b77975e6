"""What was measured is printed and written, whatever ends the command or cannot be written or drawn."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.support.engine import ROOT, TINY
from tests.unit.measure.bench.made_up import MadeUp, MadeUpTune
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.cli.terminal import console as terminal
from vllm_eagle_ext.measure.bench.results import REPORT
from vllm_eagle_ext.measure.bench.run import publish
from vllm_eagle_ext.measure.bench.runner import Runner

ODD = ["org/$\\frac{1}{0$", "org/$x$", "org/\udcff\udcfe", "org/[/bold]", "org/\x1b[31mred", "org/草稿"]


def rows(folder):
    return [row for row in json.loads((folder / REPORT).read_text())["rows"] if row["measured"]]


@pytest.mark.parametrize("made", [MadeUp, MadeUpTune])
@pytest.mark.parametrize("name", ODD)
@pytest.mark.filterwarnings("ignore:Glyph:UserWarning")
def test_any_name_of_a_draft(tmp_path, capsys, made, name):
    """matplotlib takes $..$ for mathematics, and bytes of a file's name need be no text."""
    report = made().report()
    text = json.dumps(report.model_dump()).replace("org/fast-draft", json.dumps(name)[1:-1])
    report = type(report).model_validate(json.loads(text))
    report = report.model_copy(
        update={"context": report.context.model_copy(update={"device": f"a {name}"})}
    )
    publish(report, tmp_path, terminal())
    assert json.loads((tmp_path / REPORT).read_text())["settings"]["drafts"][0] == name
    pictures = ["speedup.png"] if made is MadeUp else ["schedule.png", "speedup.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [REPORT, *pictures]
    said = capsys.readouterr().out
    assert "no picture" not in said
    assert "\x1b" not in said


@pytest.mark.parametrize("name", ODD)
def test_any_name_while_it_is_measured(name):
    console = Console(file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    with Runner(MadeUp().settings(), {}, Path("logs"), console) as runner:
        runner.task = runner.progress.add_task("texts", total=1)
        runner.show(f"ours {name}: starting")
        runner.progress.refresh()


def test_a_picture_that_fails_costs_only_itself(tmp_path, capsys, monkeypatch):
    from vllm_eagle_ext.measure.bench import picture

    monkeypatch.setattr(picture, "draw", lambda *_: 1 / 0)
    publish(MadeUp().report(), tmp_path, terminal())
    assert rows(tmp_path)
    assert (
        "no picture: it cannot be drawn (ZeroDivisionError: division by zero)" in capsys.readouterr().out
    )


def test_tables_are_printed_where_the_report_cannot_be_written(tmp_path, capsys):
    (tmp_path / REPORT).mkdir()  # nothing can be written in its place
    publish(MadeUp().report(), tmp_path, terminal())
    said = capsys.readouterr().out
    assert "concurrency 1" in said
    assert f"no {REPORT}: it cannot be written" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == [REPORT, "speedup.png"]


def test_a_report_is_written_where_tables_cannot_be_printed(tmp_path):
    shown = Console(file=(tmp_path / "closed").open("w"))
    shown.file.close()
    with pytest.raises(ValueError, match="closed file"):
        publish(MadeUp().report(), tmp_path, shown)
    assert rows(tmp_path)


@pytest.mark.parametrize("out", ["/proc/nothing", "/dev/null", "/dev/null/below", "file"])
def test_an_out_that_cannot_be_is_refused_before_engines_start(tmp_path, out):
    (tmp_path / "file").write_text("")
    out = str(tmp_path / out)
    words = ["bench", str(TINY / "postnorm"), "--target", str(TINY / "target"), "--result-dir", out]
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"--result-dir is '{out}/{REPORT}'" in result.stderr
    assert "What to do: " in result.stderr


PROGRAM = """
import sys, time
from pathlib import Path
import typer
from tests.unit.measure.bench.made_up import MadeUp
from vllm_eagle_ext.cli.terminal import Group, console, fail
from vllm_eagle_ext.measure.bench import run
from vllm_eagle_ext.measure.bench.runner import Runner

made, out = MadeUp(), Path(sys.argv[1])
app = typer.Typer(cls=Group, pretty_exceptions_enable=False)

@app.command()
def measure():
    def run_stages(runner, context):
        runner.task = runner.progress.add_task("texts", total=9)
        runner.measurements += made.records()[1]
        (out / "measuring").touch()
        {what}
    run._run_stages = run_stages
    try:
        run.measure(Runner(made.settings(), {{}}, out, console()), out, run.run_context([]))
    except KeyboardInterrupt:
        fail("Interrupted.")

@app.command()
def other():
    pass

app(["measure"])
"""


def heard() -> None:
    """Hear what a parent may ignore, as under nohup."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def as_its_own_terminal() -> None:
    heard()
    os.close(os.open(os.ttyname(0), os.O_RDWR))


def started(tmp_path, what="time.sleep(100)", **given):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(what=what))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, str(script), str(tmp_path)], env=environment, **given)


def wait_for(path: Path, process) -> None:
    end = time.monotonic() + 100
    while not path.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda n: n.name)
def test_a_signal_ends_it_as_ctrl_c(tmp_path, number):
    """As of `timeout`, `docker stop` and a closed terminal; more of them change nothing."""
    with started(
        tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=heard,
    ) as process:  # fmt: skip
        wait_for(tmp_path / "measuring", process)
        process.send_signal(number)
        while number != signal.SIGINT and process.poll() is None:
            process.send_signal(number)
            time.sleep(0.01)
        output, errors = process.communicate(timeout=100)
    assert process.returncode == 2, output + errors
    assert "Traceback" not in errors
    assert errors.endswith("Interrupted.\n")
    assert "concurrency 1" in output
    assert rows(tmp_path)


def test_under_nohup_a_closed_terminal_ends_nothing(tmp_path):
    with started(
        tmp_path, "time.sleep(1)", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    ) as process:
        wait_for(tmp_path / "measuring", process)
        process.send_signal(signal.SIGHUP)
        assert process.wait(100) == 0
    assert rows(tmp_path)


def test_a_closed_terminal_takes_no_report_with_it(tmp_path):
    """What is printed then fails."""
    leader, follower = pty.openpty()
    with started(
        tmp_path, stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
        preexec_fn=as_its_own_terminal,
    ) as process:  # fmt: skip
        os.close(follower)
        wait_for(tmp_path / "measuring", process)
        os.close(leader)
        process.wait(100)
    assert rows(tmp_path)


def test_our_own_fault_loses_nothing_either(tmp_path):
    with started(
        tmp_path, "1 / 0", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        output, errors = process.communicate(timeout=100)
    assert "ZeroDivisionError" in errors
    assert "concurrency 1" in output
    assert rows(tmp_path)
