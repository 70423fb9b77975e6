"""The pages name what there is: options, and tests and commands of figures."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from tests.support.engine import ROOT
from vllm_eagle_ext.options import Options

EVIDENCE = ROOT / "docs/dev/evidence.md"
TARGETS = set(re.findall(r"^([a-z][\w.-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_every_option_has_its_row():
    page = (ROOT / "docs/options.md").read_text()
    keys = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(keys) == sorted(Options.model_fields)


def is_defined(test_id: str) -> bool:
    file, *names = test_id.split("::")
    body = ast.parse((ROOT / file).read_text()).body
    for name in names:
        nodes = [n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name]
        if not nodes:
            return False
        body = nodes[0].body
    return True


def module_file(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


EVIDENCE_COMMANDS = re.findall(r"^\| .+ \| `([^`]+)` \|$", EVIDENCE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", sorted(set(EVIDENCE_COMMANDS)))
def test_the_command_of_a_figure_exists(command):
    words = shlex.split(command)
    if words[0] == "make":
        assert words[1] in TARGETS
    elif words[:2] == ["python", "-m"]:
        assert module_file(words[2]).exists()
    else:
        assert all(is_defined(test) for test in words if test.startswith("tests/"))
