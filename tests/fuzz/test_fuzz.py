"""Random changes to drafts: the commands end in time, with printable output and no traceback."""

from __future__ import annotations

import time

import pytest

from tests.fuzz.run import fuzz
from tests.support.drafts import FAMILIES

SEED, MUTANTS, SECONDS = 1, 3000, 60


@pytest.mark.long
def test_mutants_of_a_fixed_seed():
    report = fuzz(SEED, MUTANTS)
    report.show()
    assert not report.failed
    assert report.families.total() >= 300
    assert set(report.families) >= set(FAMILIES)


@pytest.mark.long
def test_a_minute_of_a_fresh_seed():
    seed = time.time_ns() % 2**32
    print(f"python -m tests.fuzz --seed {seed}")
    report = fuzz(seed, seconds=SECONDS)
    report.show()
    assert len(report.mutants) > 300
    assert not report.failed
