"""What is said where a package of the extra is missing."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner
from vllm.benchmarks.datasets import datasets
from vllm.utils.import_utils import PlaceholderModule

from tests.support.engine import ROOT, TINY
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.measure.extra import INSTALL
from vllm_eagle_ext.measure.prompts import read_texts


def test_verify_without_scipy_starts_no_engine(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    given = [str(TINY / "postnorm"), "--target", str(TINY / "target"), "--num-prompts", "2"]
    result = CliRunner().invoke(app, ["verify", *given])
    assert result.exit_code == 2
    assert INSTALL in result.stderr


def test_a_data_set_without_pandas(monkeypatch, tmp_path):
    """vLLM puts a placeholder in its place, which complains when it is used."""
    file = tmp_path / "question.jsonl"
    file.write_text('{"question_id": 1, "category": "qa", "turns": ["What?"]}\n')
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setattr(datasets, "pd", PlaceholderModule("pandas"))
    with pytest.raises(SpeculativeConfigError, match=r"pandas.*'\.\[measure\]'"):
        read_texts("spec_bench", dataset_path=str(file), target=str(TINY / "target"))


def test_the_extra_exists_and_has_its_former_name():
    text = (ROOT / "setup.py").read_text()
    assert '"measure": MEASURE,' in text
    assert '"bench": MEASURE,' in text
    assert INSTALL == "pip install '.[measure]'"
