"""docs/verify.md names what the command has."""

from __future__ import annotations

import re
import shlex

import pytest
import typer

from tests.support.engine import ROOT
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.measure.verify.amount import QUICK, USUAL

PAGE = (ROOT / "docs/verify.md").read_text()
VERIFY = typer.main.get_command(app).commands["verify"]
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("vllm-eagle")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command):
    program, name, *arguments = shlex.split(command, comments=True)
    assert (program, name) == ("vllm-eagle", "verify")
    with VERIFY.make_context(name, arguments) as context:
        assert (context.params["draft"], context.params["target"]) == ("DRAFT", "TARGET")


def test_every_way_to_run_it_is_there():
    flags = {word for command in COMMANDS for word in command.split() if word.startswith("--")}
    assert flags == {"--target", "--quick", "--feedback", "--gate-layouts"}


def test_options():
    known = {name for option in VERIFY.params for name in (*option.opts, *option.secondary_opts)}
    assert set(re.findall(r"(?<=[`\s])--[a-z][a-z-]+", PAGE)) <= known


def test_the_amounts_of_quick():
    text = " ".join(PAGE.split())
    assert (
        f"{QUICK['num_prompts']} prompts of {QUICK['max_tokens']} tokens in place of "
        f"{USUAL['num_prompts']} of {USUAL['max_tokens']}, with {QUICK['samples']} samples in place of "
        f"{USUAL['samples']:,}"
    ) in text


def test_the_help_names_the_same_amounts():
    helps = {option.name: option.help for option in VERIFY.params if option.name in USUAL}
    assert set(helps) == set(USUAL)
    for name, text in helps.items():
        assert text.endswith(f"Default {USUAL[name]}, with --quick {QUICK[name]}.")
