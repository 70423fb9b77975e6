"""Figures cross from one process to another without a call."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.engine import ROOT
from vllm_eagle_ext.shared_figures import FIGURES, create_figures, inherited_figures

CHILD = """
from vllm_eagle_ext.shared_figures import inherited_figures
figures = inherited_figures(3)
figures.set((4.0, 1.5))
figures[2] = 7.0
"""


@pytest.fixture
def figures(monkeypatch):
    monkeypatch.setenv(FIGURES, "")
    made = create_figures(3)
    yield made
    made.close()


def test_what_a_child_writes_is_read_here(figures):
    assert list(figures) == [0.0, 0.0, 0.0]
    subprocess.run([sys.executable, "-c", CHILD], cwd=ROOT, check=True)
    assert list(figures) == [4.0, 1.5, 7.0]


def test_the_file_goes_with_its_owner(monkeypatch):
    monkeypatch.setenv(FIGURES, "")
    made = create_figures(1)
    path = os.environ[FIGURES]
    assert os.path.exists(path)
    made.close()
    assert not os.path.exists(path)
    assert inherited_figures(1) is None


def test_without_a_front_end_here_there_is_none(monkeypatch):
    monkeypatch.delenv(FIGURES, raising=False)
    assert inherited_figures(3) is None


def test_a_file_of_another_size_is_none(figures):
    assert inherited_figures(4) is None
