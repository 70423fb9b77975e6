"""Help as it is on a terminal of 80 columns, and the version."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.support.engine import TINY
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.version import installed_vllm

WIDTH = 80


def commands(group, path=()):
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        if not command.hidden:
            yield from commands(command, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.fixture(params=COMMANDS, ids=lambda path: " ".join(path) or "vllm-eagle")
def shown(request):
    runner = CliRunner(env={"COLUMNS": str(WIDTH), "TERM": "dumb", "NO_COLOR": "1"})
    result = runner.invoke(app, [*request.param, "--help"])
    assert result.exit_code == 0
    return COMMANDS[request.param], result.stdout


def test_every_option_is_named_whole(shown):
    command, text = shown
    words = set(re.split(r"[\s,/|]+", text))
    listed = [p for p in command.params if not getattr(p, "hidden", False)]
    named = [name for p in listed for name in (*p.opts, *p.secondary_opts) if name[0] == "-"]
    assert [name for name in named if name not in words] == []
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_every_option_has_a_help_text(shown):
    command, _ = shown
    assert [p.name for p in command.params if not getattr(p, "hidden", False) and not p.help] == []


def test_the_summaries_of_commands_are_not_cut():
    runner = CliRunner(env={"COLUMNS": str(WIDTH), "TERM": "dumb", "NO_COLOR": "1"})
    assert "..." not in runner.invoke(app, ["--help"]).stdout.partition("Commands:")[2]


def test_version():
    script = Path(sys.executable).with_name("vllm-eagle")
    result = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"vllm-eagle-ext {version('vllm-eagle-ext')}, vLLM {installed_vllm()}\n"


def test_many_options_are_in_sections_and_values_have_kinds(shown):
    command, text = shown
    many = len(command.params) > 10
    assert ("\nOutput:\n" in text) is many
    assert "{" not in text.splitlines()[0]
    assert [kind for kind in ("<str>", "<int", "<float", "<path") if kind in text] == []


def test_kinds_of_values():
    text = CliRunner().invoke(app, ["verify", "--help"]).stdout
    words = "[OPTIONS] DRAFT\n", "  DRAFT  Name", "--target TARGET ", "--engine JSON ", "--out FILE "
    assert [part for part in words if part not in text] == []


def test_a_choice_is_named_whole():
    assert "--format <own|speculators>" in CliRunner().invoke(app, ["convert", "--help"]).stdout


def test_a_pipe_has_whole_lines_without_blanks_at_their_end(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    words = ["check", str(TINY / "postnorm"), "--target", str(TINY / "target"), "--quick"]
    result = CliRunner().invoke(app, words)
    assert [line for line in result.stdout.splitlines() if line != line.rstrip()] == []
    rule = "ids nested in eagle_config name the layers whose output is read"
    assert f"  rule            {rule}, which is the input of layer id + 1\n" in result.stdout
