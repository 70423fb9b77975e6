"""Random changes to drafts: the commands end in time, with printable output and no traceback."""

from __future__ import annotations

import time

import pytest

from tests.fuzz.run import fuzz
from tests.support.drafts import FAMILIES

SEED, MUTANTS, SECONDS = 1, 3000, 60
NOT_BUILT_SHARE = 0.01  # of fresh seeds, which may hold a kind that none has met


@pytest.mark.full
def test_mutants_of_a_fixed_seed():
    report = fuzz(SEED, MUTANTS)
    report.show()
    assert not report.failed
    assert len(report.built) >= 300
    assert set(report.families) >= set(FAMILIES)
    assert report.not_built == {}  # what is approved starts


@pytest.mark.long
def test_a_minute_of_a_fresh_seed():
    seed = time.time_ns() % 2**32
    print(f"python -m tests.fuzz --seed {seed}")
    report = fuzz(seed, seconds=SECONDS)
    report.show()
    assert len(report.mutants) > 300
    assert not report.failed
    assert sum(map(len, report.not_built.values())) <= NOT_BUILT_SHARE * len(report.built)
