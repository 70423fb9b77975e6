"""docs/performance.md and docs/dev/gpu.md show the committed results."""

from __future__ import annotations

import json

import pytest

from benchmarks.gpu.texts import ON_CPUS
from tests.support.engine import ROOT


def test_acceptance_on_cpus_is_the_evidence():
    page = (ROOT / "docs/dev/evidence.md").read_text(encoding="utf-8")
    for rates in ON_CPUS.values():
        assert f"engine {' '.join(f'{rate:.3f}'[1:] for rate in rates)}, reference" in page


@pytest.mark.full
def test_the_break_even_is_what_the_model_says():
    from benchmarks.break_even import RESULT, find

    committed = json.loads(RESULT.read_text(encoding="utf-8"))["pairs"]
    assert json.loads(json.dumps(find())) == committed
