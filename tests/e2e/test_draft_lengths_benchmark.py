"""`python -m benchmarks.draft_lengths`, a tiny run: every variant decodes every load."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.draft_lengths.lengths_page import PAGE, picture_file, result_file
from benchmarks.draft_lengths.lengths_result import AUTO, LengthsResult
from tests.support.engine import ROOT, engine_environment
from vllm_eagle_ext.measure.tune.results import NONE

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SIZE = "--rounds 2 --starts 1 --tokens 6 --texts 2 --loads 1,4 --contexts 64 --steps 8"


@pytest.mark.parametrize("pair", ["dense", "hybrid"])
def test_a_tiny_run(pair, tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.draft_lengths", "--pair", pair, *SIZE.split(), "--write",
         "--root", str(tmp_path)],
        cwd=ROOT, env=engine_environment("v1"), capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    found = LengthsResult.read(tmp_path / result_file(pair))
    settings = found.settings
    measured = [cell for cell in found.cells if not cell.is_first]
    assert len(measured) == 2 * 3 * len(settings.served)
    assert [cell.served for cell in found.cells if cell.is_first] == [AUTO] * 3
    for cell in measured:
        requests = sum(cell.load.phases) * (2 if cell.load.requests == 1 else 1)
        assert settings.tokens * requests <= cell.tokens < (settings.tokens + settings.k + 1) * requests
        assert cell.greedy[0]
        assert cell.sampled[0]
        assert cell.cpu_s > 0
        if cell.served == NONE or (cell.served != AUTO and not cell.served.k):
            assert cell.tokens == cell.greedy[1] + cell.sampled[1]
            assert cell.drafted == 0
        else:
            assert cell.drafted > 0
            assert sum(cell.accepted) <= cell.drafted
        if cell.served.name == "held" and cell.load.requests == 1:  # nothing is read beside a draft
            assert cell.drafted == cell.served.k * cell.decoded
    assert "| 1 to 4 to 1, 64 |" in (tmp_path / PAGE).read_text()
    assert (tmp_path / picture_file(pair)).read_bytes().startswith(b"\x89PNG")
