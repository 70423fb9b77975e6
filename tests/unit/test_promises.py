"""A promise of the README that no test of `make test` proves is refused when tests are collected."""

from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.promises import table, unproven
from tests.support.engine import ROOT


def item(*markers: pytest.MarkDecorator, parameters: str | None = None) -> SimpleNamespace:
    """What of a collected test is asked for."""
    marks = [decorated.mark for decorated in markers]
    return SimpleNamespace(
        nodeid=f"tests/test_a.py::test_a[{parameters}]",
        callspec=parameters and SimpleNamespace(id=parameters),
        iter_markers=lambda name: (mark for mark in marks if mark.name == name),
        get_closest_marker=lambda name: next((mark for mark in marks if mark.name == name), None),
    )


PROMISES = 72  # of the README, counted by their words
TEXT = pytest.mark.promise("the text is that without a draft")
GATED = pytest.mark.promise("gated drafts: text", id="gated")


@pytest.mark.parametrize(
    "items", [[item(TEXT)], [item(GATED, parameters=p) for p in ("plain", "gated")]]
)
def test_a_promise_that_is_proven(items):
    assert unproven(items) == []


@pytest.mark.parametrize(
    ("items", "lost"),
    [
        ([item(TEXT, pytest.mark.long)], TEXT),
        ([item(TEXT, pytest.mark.full), item()], TEXT),
        ([item(GATED, parameters="plain")], GATED),
        ([item(GATED)], GATED),
    ],
)
def test_a_promise_that_lost_its_test(items, lost):
    assert unproven(items) == [lost.args[0]]


def test_the_table_names_parameters_that_alone_prove_it():
    shown = table([item(GATED, TEXT, parameters="gated"), item(GATED, parameters="plain")])
    assert shown.splitlines()[2:] == [
        "| the text is that without a draft | `tests/test_a.py::test_a` |",
        "| gated drafts: text | `tests/test_a.py::test_a[gated]` |",
    ]


def test_ci_runs_every_tier_of_a_change():
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    lines = [line for line in script.splitlines() if "make " in line and not line.startswith("#")]
    assert lines == [
        "make lint",
        "make test",
        "if grep -qw avx512f /proc/cpuinfo; then make test ISA=avx2; fi",
        "make test-full REST=1",
        "make test-0.33 SHORT=1",
        "make contract VLLM=0.33.0",
        "make test-peers ROWS=reference",
    ]


def test_no_promise_is_lost_with_its_test():
    """One more is welcome; one less is a promise that the README no longer makes."""
    marker = re.compile(r'mark\.promise\(\s*("[^"]+"(?:\s*"[^"]+")*)')
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    found = {promise for text in texts for promise in marker.findall(text)}
    assert len(found - {f'"{TEXT.args[0]}"'}) >= PROMISES


def test_the_page_shows_what_engines_show():
    """`python -m tests.promises --write` writes it; tests are collected as by themselves."""
    program = (
        "from tests.promises import PAGE, by_runner, collect, page_with\n"
        "items, failed = collect()\n"
        "print(failed or page_with(by_runner(items)) == PAGE.read_text(encoding='utf-8'))"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.stdout == "True\n", result.stderr
