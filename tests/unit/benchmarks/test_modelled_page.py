"""docs/performance.md and docs/dev/gpu.md show the committed results."""

from __future__ import annotations

import json

import pytest


@pytest.mark.full
def test_the_break_even_is_what_the_model_says():
    from benchmarks.break_even import RESULT, find

    committed = json.loads(RESULT.read_text(encoding="utf-8"))["pairs"]
    assert json.loads(json.dumps(find())) == committed
