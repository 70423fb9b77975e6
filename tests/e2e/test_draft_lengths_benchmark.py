"""`python -m benchmarks.draft_lengths`, a tiny run: every variant decodes every load."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from benchmarks.draft_lengths.lengths_page import PAGE, picture_file, result_file
from benchmarks.draft_lengths.lengths_result import AUTO, LengthsCell, LengthsResult
from benchmarks.draft_lengths.tiny_pairs import MIXES
from tests.support.engine import ROOT, engine_environment
from vllm_eagle_ext.measure.tune.results import NONE

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SIZE = "--starts 2 --rounds 2 --tokens 6 --texts 2 --loads 1,4 --contexts 64 --steps 8"


@pytest.mark.parametrize(("pair", "sampled"), [("dense", 0.0), ("hybrid", 0.5)])
def test_a_tiny_run(pair, sampled, tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.draft_lengths", "--pair", pair, *SIZE.split(), "--sampled",
         str(sampled), "--write", "--root", str(tmp_path)],
        cwd=ROOT, env=engine_environment("v1"), capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    found = LengthsResult.read(tmp_path / result_file(pair, MIXES[sampled]))
    settings = found.settings
    turns = Counter((cell.start, cell.load, cell.round) for cell in found.cells)
    rounds = [settings.rounds_of(load) for load in settings.loads]
    assert rounds == [2, 1, 1]
    assert set(turns.values()) == {len(settings.served) + 1}
    assert len(turns) == settings.starts * sum(rounds)
    for cell in found.cells:
        require_whole(cell, found)
    assert "| 1 to 4 to 1, 64 |" in (tmp_path / PAGE).read_text()
    assert (tmp_path / picture_file(pair, MIXES[sampled])).read_bytes().startswith(b"\x89PNG")


def require_whole(cell: LengthsCell, found: LengthsResult) -> None:
    settings, requests = found.settings, sum(cell.load.phases)
    wanted = settings.tokens_of(cell.load)
    assert wanted * requests <= cell.tokens < (wanted + settings.k + 1) * requests
    assert cell.cpu_s > 0
    assert cell.piece_s > 0
    assert bool(cell.sampled[0]) == bool(settings.sampled) or cell.load.requests == 1
    if cell.served == AUTO:
        assert sum(one.steps for one in cell.by_length) == cell.steps
        assert sum(one.tokens for one in cell.by_length) == cell.tokens
        assert sum(one.cpu_s for one in cell.by_length) == pytest.approx(cell.cpu_s, abs=1e-4)
        return
    assert not cell.by_length
    if cell.served == NONE or not cell.served.k:
        assert cell.tokens == cell.greedy[1] + cell.sampled[1]
        assert cell.drafted == 0
    else:
        assert cell.drafted > 0
        assert sum(cell.accepted) <= cell.drafted
        if cell.load.requests == 1:  # nothing is read beside a draft
            assert cell.drafted == cell.served.k * cell.decoded
