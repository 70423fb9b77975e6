"""Arguments of no letters, as an unset variable leaves them."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tests.support.checkpoints import tiny_draft, write_target
from vllm_eagle_ext.cli import app


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["check", ""], "check"),
        (["check", "draft", "--target", ""], "--target"),
        (["check", "draft", "--target="], "--target"),
        (["convert", "draft", "", "--target", "target"], "draft"),
        (["plan", "--target", "", "--gpu-mem", "80"], "--target"),
        (["plan", "", "--target", "target"], "plan"),
        (["verify", "draft", "", "--target", "target"], "draft"),
        (["bench", "draft", "--target", "target", "--result-dir", ""], "--result-dir"),
        (["bench", "", "--target", "target"], "bench"),
        (["vocabulary", "draft", "--target", "target", "--out", ""], "--out"),
    ],
)
def test_refused(tmp_path, monkeypatch, words, named):
    """The working folder, which a path of no letters means, holds a draft or a target."""
    write_target(tmp_path / "target")
    monkeypatch.chdir(tiny_draft(tmp_path / "draft") if words[0] != "plan" else tmp_path / "target")
    before = sorted(tmp_path.rglob("*"))
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, words)
    assert result.exit_code == 2
    assert f"what follows '{named}' is empty: give it a name" in result.stderr
    assert sorted(tmp_path.rglob("*")) == before
