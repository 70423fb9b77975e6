"""Arguments of no letters, as an unset variable leaves them."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tests.support.checkpoints import tiny_draft, write_target
from vllm_eagle_ext.cli import app


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["check", ""], "the argument '' after 'check'"),
        (["check", "draft", "--target", ""], "the argument '' after 'check draft --target'"),
        (["check", "draft", "--target="], "the argument '--target=' after 'check draft'"),
        (["convert", "draft", "", "--target", "target"], "the argument '' after 'convert draft'"),
        (["plan", "--target", "", "--gpu-mem", "80"], "the argument '' after 'plan --target'"),
        (["plan", "", "--target", "target"], "the argument '' after 'plan'"),
        (["verify", "draft", "", "--target", "target"], "the argument '' after 'verify draft'"),
        (["bench", "draft", "--target", "target", "--out", ""], "--out'"),
        (["tune", "", "--target", "target"], "the argument '' after 'tune'"),
        (["vocabulary", "draft", "--target", "target", "--out", ""], "--out'"),
    ],
)
def test_refused(tmp_path, monkeypatch, words, named):
    """The working folder, which a path of no letters means, holds a draft or a target."""
    write_target(tmp_path / "target")
    monkeypatch.chdir(tiny_draft(tmp_path / "draft") if words[0] != "plan" else tmp_path / "target")
    before = sorted(tmp_path.rglob("*"))
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, words)
    assert result.exit_code == 2
    assert f"{named} is empty: give it a value" in result.stderr
    assert sorted(tmp_path.rglob("*")) == before
