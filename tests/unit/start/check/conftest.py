from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tests.support.checkpoints import tiny_draft, write_target
from vllm_eagle_ext.cli import app


@pytest.fixture
def target(tmp_path):
    return write_target(tmp_path / "target")


@pytest.fixture
def draft(tmp_path):
    return tiny_draft(tmp_path / "draft")


@pytest.fixture
def check(target):
    """`vllm-eagle check` against the tiny target."""

    def run(draft, *options, columns=200):
        given = options if "--platform" in options else ("--platform", "cuda", *options)
        arguments = ["check", str(draft), "--target", str(target), *given]
        environment = {"COLUMNS": str(columns), "TERM": "dumb", "NO_COLOR": "1"}
        return CliRunner(env=environment).invoke(app, arguments)

    return run
