"""What is said where a package of the extra is missing."""

from __future__ import annotations

import sys

from typer.testing import CliRunner

from tests.support.engine import ROOT, TINY
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.measure.engine.machine import INSTALL


def test_verify_without_scipy_starts_no_engine(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    given = [str(TINY / "postnorm"), "--target", str(TINY / "target"), "--num-prompts", "2"]
    result = CliRunner().invoke(app, ["verify", *given])
    assert result.exit_code == 2
    assert INSTALL in result.stderr


def test_the_extra_exists():
    assert "\nmeasure = [" in (ROOT / "pyproject.toml").read_text()
    assert INSTALL == "pip install '.[measure]'"
