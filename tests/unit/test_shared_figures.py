"""Figures cross from one process to another without a call."""

from __future__ import annotations

import math
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
FRONT_END = """
import os, sys
from vllm_eagle_ext.shared_figures import create_figures
figures = create_figures(3)
print("made", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def figures(monkeypatch):
    monkeypatch.setenv(FIGURES, "")
    made = create_figures(3)
    yield made
    made.close()


def test_what_a_child_writes_is_read_here(figures):
    assert all(math.isnan(figure) for figure in figures), "nothing is said before"
    subprocess.run([sys.executable, "-c", CHILD], cwd=ROOT, check=True)
    assert list(figures) == [4.0, 1.5, 7.0]


def test_a_front_end_that_is_killed_leaves_no_file(tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", FRONT_END], cwd=ROOT, env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "made\n"
        process.kill()
    assert list(tmp_path.iterdir()) == []


def test_they_are_no_longer_named_once_they_are_closed(monkeypatch):
    monkeypatch.setenv(FIGURES, "")
    first, second = create_figures(1), create_figures(1)
    first.close()
    assert inherited_figures(1) is not None, "of the second"
    path = os.environ[FIGURES]
    second.close()
    assert FIGURES not in os.environ
    assert not os.path.lexists(path)
    monkeypatch.setenv(FIGURES, path)
    assert inherited_figures(1) is None


def test_without_a_front_end_here_there_are_none(monkeypatch):
    monkeypatch.delenv(FIGURES, raising=False)
    assert inherited_figures(3) is None


@pytest.mark.parametrize("count", [2, 4])
def test_another_number_of_them_is_none(figures, count):
    assert inherited_figures(count) is None


def test_what_has_the_number_of_a_front_end_that_ended_is_left_alone(tmp_path, monkeypatch):
    with open(tmp_path / "somebody's", "w+b") as file:
        file.truncate(24)
        monkeypatch.setenv(FIGURES, f"/proc/{os.getpid()}/fd/{file.fileno()}")
        assert inherited_figures(3) is None


def test_elsewhere_than_on_linux_there_are_none(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(OSError, match="on Linux alone"):
        create_figures(3)
