"""docs/performance.md and docs/dev/gpu.md show the committed results."""

from __future__ import annotations

import json

import pytest

from benchmarks.modelled_page import RESULTS, fill, pages


def test_the_pages():
    for page, blocks in pages().items():
        text = page.read_text(encoding="utf-8")
        assert text.count(":begin -->\n|") >= len(blocks)
        assert fill(text, blocks) == text


@pytest.mark.full
def test_the_break_even_is_what_the_model_says():
    from benchmarks.break_even import RESULT, find

    committed = json.loads(RESULT.read_text(encoding="utf-8"))["pairs"]
    assert json.loads(json.dumps(find())) == committed


def test_results_name_their_command_and_machine():
    for file in (RESULTS / "virtual_clock").glob("*.json"):
        found = json.loads(file.read_text(encoding="utf-8"))
        assert found["command"].startswith("python -m benchmarks.virtual_clock")
        assert found["machine"]["processor"]
        assert len({cell["digest"] for cell in found["cells"]}) > 1
