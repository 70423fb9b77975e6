"""`make test-peers ROWS=...`: a tier that there is, or an error before anything is run."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.engine import ROOT


def dry_run(rows: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--dry-run", "test-peers", f"ROWS={rows}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("rows", ["reference", "default", "all"])
def test_tiers(rows):
    found = dry_run(rows)
    assert found.returncode == 0
    assert '-m "peers' in found.stdout


@pytest.mark.parametrize("rows", ["typo", "", "all typo"])
def test_no_tier(rows):
    """pytest takes an empty -m for every test."""
    found = dry_run(rows)
    assert found.returncode != 0
    assert f"ROWS={rows}: allowed are reference, default and all" in found.stderr
    assert "pytest" not in found.stdout
