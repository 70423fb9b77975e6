"""CONTRIBUTING's table of promises names tests that `make test` runs."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.engine import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TABLE = TEXT.partition("<!-- promises:begin -->")[2].partition("<!-- promises:end -->")[0]
PROMISES = re.findall(r"^\| (.+) \| `(tests/[^`]+)` \| (.*?) ?\|$", TABLE, re.MULTILINE)
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def collected() -> list[str]:
    """Ids that `make test` selects of the table's files."""
    (expression,) = re.findall(r"^FAST := (.+)$", MAKEFILE, re.MULTILINE)
    files = sorted({test.partition("::")[0] for _, test, _ in PROMISES})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    result = subprocess.run(
        [*command, "-m", expression, *files], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return [line for line in result.stdout.splitlines() if line.startswith("tests/")]


def test_every_row_is_read():
    rows = [line for line in TABLE.splitlines() if line.startswith("| ")]
    assert len(PROMISES) == len(rows) - 1 >= 30
    assert len({promise for promise, _, _ in PROMISES}) == len(PROMISES)


@pytest.mark.parametrize(("promise", "test"), [pytest.param(*row[:2], id=row[1]) for row in PROMISES])
def test_a_promise_is_tested_by_make_test(collected, promise, test):
    """Named with its parameters, without them, or as a whole file."""
    assert any(one == test or one.startswith((f"{test}[", f"{test}::")) for one in collected), promise


def test_the_other_column_names_engine_tests():
    named = {name for _, _, more in PROMISES for name in re.findall(r"`([^`]+)`", more)}
    assert named
    assert [name for name in named if not (ROOT / "tests/e2e" / name).exists()] == []


@pytest.mark.parametrize("target", re.findall(r"^\| `make ([\w.-]+)", TEXT, re.MULTILINE))
def test_make_has_every_target_of_the_table(target):
    assert re.search(rf"^{re.escape(target)}:", MAKEFILE, re.MULTILINE)


def test_ci_runs_every_tier_of_a_change():
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    lines = [line for line in script.splitlines() if line.startswith("make ")]
    assert lines == ["make lint", "make test", "make test-full REST=1", "make test-peers ROWS=reference"]
