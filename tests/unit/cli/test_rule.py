"""`vllm-eagle rule`."""

from __future__ import annotations

import re
from inspect import getdoc

import pytest
from typer.testing import CliRunner

from tests.support.engine import ROOT
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.draft.rules import every_rule
from vllm_eagle_ext.start.rules import printed_rules, start_rules

FROZEN = (ROOT / "tests/golden/0.32.txt").read_text(encoding="utf-8")
PRINTED = set(re.findall(r"^ *(?:error|warning|note) (\w+)", FROZEN, re.MULTILINE))


@pytest.mark.parametrize("name", sorted(PRINTED | printed_rules().keys()))
def test_every_name_that_check_prints_is_explained(name):
    result = CliRunner().invoke(app, ["rule", name])
    assert result.exit_code == 0
    rule = printed_rules()[name]
    assert result.stdout.startswith(f"{name}: {rule.severity}")
    error = rule.error.__name__ if rule.error else "vLLM's own error"
    assert (f"raises {error}" in result.stdout) is (rule.severity == "error")
    assert rule.check.__doc__
    assert result.stdout.endswith(f"\n\n{getdoc(rule.check)}\n")


def test_a_name_is_taken_once():
    assert len(printed_rules()) == len((*every_rule(), *start_rules()))


def test_what_is_said():
    result = CliRunner().invoke(app, ["rule", "k_is_within_the_block"])
    assert result.stdout == (
        "k_is_within_the_block: error, a start raises UnsupportedDraftError; `strict: false` makes it a "
        "warning\nFor DFlash, DFlash2, DSpark.\n\n"
        "K is below the block size; DSpark may equal it.\n\n"
        "The first position of a block holds the last sampled token, unless the draft samples from it.\n"
    )


def test_a_name_that_is_mistyped():
    result = CliRunner().invoke(app, ["rule", "tensors_are_compleet\x1b[31m"])
    assert result.exit_code == 2
    assert "tensors_are_complete" in result.stderr
    assert "\x1b" not in result.stderr
