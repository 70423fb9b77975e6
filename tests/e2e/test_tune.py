"""`vllm-eagle tune` on the tiny pair: every K held in one engine, and the printed config served."""

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
from vllm_eagle_ext.cli.terminal import SCHEMA
from vllm_eagle_ext.measure.bench.results import PLAIN, REPORT, Report

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


def report_in(out: Path) -> Report:
    return Report.model_validate_json((out / REPORT).read_text())


def exit_code(report: Report) -> int:
    return 1 if report.choice.slower else 2 * bool(report.choice.undecided)


def test_each_length_was_held(measured):
    """Of no more positions than K something is accepted, and of more positions more."""
    rows = report_in(measured[0]).of("sweep")
    assert [row.measured for row in rows] == [2] * 2 * (1 + len(LENGTHS))
    for row in rows:
        k = row.variant.k
        assert row.step_ms > 0
        if not k:
            assert (row.acceptance_length, row.drafts) == (1, 0)
        else:
            assert len(row.accepted) == 4  # positions that vLLM counts: of the engine's K
            assert sum(row.accepted[k:]) == 0
            assert row.drafts > 0
            assert 1 < row.acceptance_length <= 1 + k
    one, four = (sum(row.acceptance_length for row in rows if row.variant.k == k) for k in (1, 4))
    assert four > 1.3 * one


def test_what_is_printed_is_what_was_measured(measured):
    out, result = measured
    report = report_in(out)
    choice = report.choice
    assert result.returncode == exit_code(report)
    held = {(row.concurrency, row.variant.k) for row in report.of("sweep") if row.variant != PLAIN}
    assert held == {(n, k) for n in (1, 4) for k in LENGTHS}
    assert (out / "tune.png").read_bytes().startswith(b"\x89PNG")
    assert "--concurrency and --context take less time" in result.stdout
    if choice.served == PLAIN:  # on a machine as busy as that
        assert "serve without a draft" in result.stdout
        return
    printed = re.search(r"--speculative-config '(.*?)'", result.stdout)
    assert json.loads(printed[1]) == choice.config.speculative_config
    served = [row for row in report.of("closing") if row.variant == choice.served]
    assert [row.concurrency for row in served] == [1, 4]
    assert all(row.speedup.low <= row.speedup.median <= row.speedup.high for row in served)
    assert choice.gain.pairs == 2


def test_json(tmp_path):
    """Of step times alone, which is quickest."""
    result = tune(tmp_path / "out", "--surface-only", "--json")
    found = json.loads(result.stdout)
    assert (found.pop("schema_version"), found.pop("exit_code")) == (SCHEMA, 0)
    report = Report.model_validate(found)
    assert (result.returncode, report.choice, report.of("closing")) == (0, None, [])
    assert report == report_in(tmp_path / "out")


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
    assert result.returncode == exit_code(report_in(tmp_path / "tune"))
