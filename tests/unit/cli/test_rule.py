"""`vllm-eagle rule`."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from vllm_eagle_ext.cli import app
from vllm_eagle_ext.draft.rules import every_rule
from vllm_eagle_ext.start.rules import ENGINE_RULES, UNTESTED_RULES

ALL = (*every_rule(), *ENGINE_RULES, *UNTESTED_RULES)


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.name)
def test_every_rule_is_explained(rule):
    result = CliRunner().invoke(app, ["rule", rule.name])
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{rule.name}: {rule.severity}")
    assert (rule.error.__name__ in result.stdout) is (rule.severity == "error")


def test_what_is_said():
    result = CliRunner().invoke(app, ["rule", "k_is_within_the_block"])
    assert result.stdout == (
        "k_is_within_the_block: error, a start raises UnsupportedDraftError; `strict: false` makes it a "
        "warning\nFor DFlash, DFlash2, DSpark.\n\n"
        "Refuse more tokens than a block drafts, which vLLM does not check.\n\n"
        "The first position of a block holds the last sampled token, unless the draft samples from it.\n"
    )


def test_a_name_that_is_mistyped():
    result = CliRunner().invoke(app, ["rule", "tensors_are_compleet\x1b[31m"])
    assert result.exit_code == 2
    assert "tensors_are_complete" in result.stderr
    assert "\x1b" not in result.stderr
