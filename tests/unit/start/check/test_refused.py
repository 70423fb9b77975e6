"""`vllm-eagle check`, exit code 1: drafts that vLLM would refuse, or should."""

from __future__ import annotations

import pytest

from tests.support.checkpoints import draft_config, draft_tensors, tiny_draft, write_draft
from tests.unit.cli.output import serve_line


@pytest.fixture
def contradictory(tmp_path):
    """A draft that an engine would start with."""
    config = draft_config(num_aux=3, post_norm=True)
    config["eagle_config"]["norm_output"] = False
    return write_draft(tmp_path / "draft", config, draft_tensors(num_aux=3, post_norm=True))


def test_a_draft_that_would_be_refused(check, without_norms):
    result = check(without_norms)
    assert result.exit_code == 1
    assert "post-norm EAGLE-3, 1 llama layer" in result.stdout
    assert "error fc_norms_match_their_flag: fc_norm tensors of the draft are []" in result.stdout
    assert "  allowed: fc_norm.0 to fc_norm.2, one per aux layer" in result.stdout
    assert "  to do:   check that config.json belongs to the weights" in result.stdout
    count = result.stdout.count("\nerror ")
    assert f"Would be refused: {count} error" in result.stdout
    assert "vllm serve" not in result.stdout
    assert "It would run with" not in result.stdout


def test_an_error_that_an_engine_would_start_with(check, contradictory):
    result = check(contradictory)
    assert result.exit_code == 1
    assert "error flags_agree: norm_output at " in result.stdout
    assert 'It would run with {"eagle_ext": {"strict": false}}' in result.stdout


def test_strict_false_makes_a_warning_of_it(check, contradictory):
    result = check(contradictory, "--eagle-ext", '{"strict": false}')
    assert result.exit_code == 0
    assert "warning flags_agree: " in result.stdout
    assert serve_line(result)[1]["--additional-config"] == {"eagle_ext": {"strict": False}}


def test_errors_come_first(check, tmp_path):
    draft = tiny_draft(tmp_path / "draft", eagle_config=None, norm_output=False, draft_vocab_size=95)
    shown = check(draft).stdout
    kinds = [line.split()[0] for line in shown.splitlines() if line.startswith(("error ", "warning "))]
    assert kinds == sorted(kinds)
    assert set(kinds) == {"error", "warning"}
