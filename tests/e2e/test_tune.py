"""`vllm-eagle tune` on the tiny pair: every K held in one engine, the printed config served, resumed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engine import IN_PROCESS, ROOT, TINY, engine_environment
from tests.support.readme import ADAPTIVE, blocks
from vllm_eagle_ext.measure.tune.publish import PICTURE, REPORT
from vllm_eagle_ext.measure.tune.report import TuneReport
from vllm_eagle_ext.measure.tune.results import CELLS, NONE, TuneFolder

pytestmark = [pytest.mark.e2e, pytest.mark.long]

LENGTHS = (0, 1, 4)
COMMAND = [
    str(TINY / "postnorm"), "--target", str(TINY / "target"), "-k", "4", "--lengths", "1,4",
    "--concurrency", "1,4", "--context", "64", "--rounds", "2", "--steps", "16",
    "--prompts", str(TINY / "prompts.jsonl"), "--no-chat-template",
    "--engine", '{"max_model_len": 1024, "enforce_eager": true}',
]  # fmt: skip


def tune(out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    environment = engine_environment("v1") | IN_PROCESS | {"COLUMNS": "120"}
    del environment["VLLM_CPU_KVCACHE_SPACE"]  # as a user's: what is free decides
    result = subprocess.run(
        [str(Path(sys.executable).parent / "vllm-eagle"), "tune", *COMMAND, "--out", str(out), *more],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (out / REPORT).exists(), result.stdout + result.stderr
    print(result.stdout)
    return result


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("tune") / "out"
    return out, tune(out)


def test_each_length_was_held(measured):
    """Tokens of a step are 1 without drafts, and more with more of them, over the same texts."""
    out, _ = measured
    cells = TuneFolder(out).cells("sweep")
    assert len(cells) == 2 * 2 * (1 + len(LENGTHS))
    for cell in cells:
        if cell.served == NONE or not cell.served.k:
            assert cell.length == 1
            assert cell.drafts == 0
        else:
            assert len(cell.accepted) == 4  # positions that vLLM counts: of the engine's K
            assert sum(cell.accepted[cell.served.k :]) == 0
            assert cell.drafts > 0
            assert 1 < cell.length <= 1 + cell.served.k
        assert cell.step_s > 0
    one, four = (sum(c.tokens for c in cells if c.served.k == k) for k in (1, 4))
    assert four > 1.3 * one


def test_what_is_printed_is_what_was_measured(measured):
    out, result = measured
    report = TuneReport.model_validate_json((out / REPORT).read_text())
    assert result.returncode == report.exit_code == (1 if report.slower else 2 * bool(report.undecided))
    assert {(row.load.requests, row.k) for row in report.surface} == {
        (n, k) for n in (1, 4) for k in LENGTHS
    }
    assert (out / PICTURE).read_bytes().startswith(b"\x89PNG")
    assert "takes about" in result.stdout
    if report.served == NONE:  # on a machine as busy as that
        assert "serve without a draft" in result.stdout
        return
    printed = re.search(r"--speculative-config '(.*?)'", result.stdout)
    assert json.loads(printed[1]) == report.config.speculative_config
    served = [row for row in report.closing if row.served == report.served]
    assert [row.load.requests for row in served] == [1, 4]
    assert all(row.gain.low <= row.gain.median <= row.gain.high for row in served)


def test_the_same_command_again_starts_nothing(measured):
    """A line that was cut off is dropped."""
    out, first = measured
    file = out / CELLS
    before = file.read_text()
    file.write_text(before + '{"stage": "clos')
    found = tune(out, "--json")
    assert file.read_text() == before
    assert TuneReport.model_validate_json(found.stdout).exit_code == found.returncode == first.returncode
    assert "takes about" not in found.stderr


def test_a_lost_turn_alone_is_measured_again(measured):
    out, _ = measured
    file = out / CELLS
    before = file.read_text().splitlines(keepends=True)
    kept = [line for line in before if not ('"sweep"' in line and '"round":1' in line)]
    assert len(kept) == len(before) - 2 * (1 + len(LENGTHS))
    file.write_text("".join(kept))
    tune(out)
    again = file.read_text().splitlines(keepends=True)
    assert again[: len(kept)] == kept
    sweep = [json.loads(line) for line in again[len(kept) :] if '"sweep"' in line]
    assert {cell["round"] for cell in sweep} == {1}
    assert len(sweep) == 2 * (1 + len(LENGTHS))


def test_the_command_of_the_page(tmp_path):
    """As it stands in docs/adaptive.md, with the environment of a user."""
    (command,) = (block for block in blocks("bash", ADAPTIVE) if block.startswith("vllm-eagle tune"))
    environment = engine_environment("v1")
    del environment["VLLM_CPU_KVCACHE_SPACE"]
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    result = subprocess.run(
        ["sh", "-c", f"{command.strip()} --out {tmp_path / 'tune'}"], cwd=ROOT, env=environment,
        capture_output=True, text=True, timeout=3600, check=False,
    )  # fmt: skip
    print(result.stdout)
    assert (tmp_path / "tune" / REPORT).exists(), result.stdout + result.stderr
    report = TuneReport.model_validate_json((tmp_path / "tune" / REPORT).read_text())
    assert result.returncode == report.exit_code
