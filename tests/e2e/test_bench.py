"""`vllm-eagle bench` on the tiny pairs: variants side by side, an interrupted bench, a schedule."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.engine import IN_PROCESS, ROOT, TINY, engine_environment, has_gpu
from tests.support.readme import ADAPTIVE, blocks
from vllm_eagle_ext.cli.terminal import SCHEMA
from vllm_eagle_ext.measure.bench.results import PLAIN, REPORT, Report
from vllm_eagle_ext.measure.bench.run import exit_code

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ENGINE = {"max_model_len": 1024, "enforce_eager": True}


def started(out: Path, *arguments: str, draft: Path = TINY / "postnorm") -> tuple[list[str], dict]:
    """The command, and its environment."""
    command = [str(Path(sys.executable).parent / "vllm-eagle"), "bench"]
    command += [str(draft), "--target", str(TINY / "target"), "--prompts", str(TINY / "prompts.jsonl")]
    command += ["--no-chat-template", "--engine", json.dumps(ENGINE), *arguments]
    command += ["--result-dir", str(out)]
    if "--schedule" not in arguments:
        command += ["-k", "4", "--ignore-eos", "--max-tokens", "32"]
        command += [] if "--rounds" in arguments else ["--rounds", "1"]
    environment = engine_environment("v1") | IN_PROCESS | {"COLUMNS": "120"}
    del environment["VLLM_CPU_KVCACHE_SPACE"]  # as a user's: what is free decides
    return command, environment


def bench(out: Path, *arguments: str, draft: Path = TINY / "postnorm", status: int = 0) -> str:
    command, environment = started(out, *arguments, draft=draft)
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == status, result.stdout + result.stderr
    print(result.stdout)
    return result.stdout


def rows(out: Path):
    report = json.loads((out / "report.json").read_text())
    return {(row["variant"]["kind"], row["concurrency"]): row for row in report["rows"]}


def test_no_draft_and_ours_side_by_side(tmp_path):
    out = tmp_path / "bench"
    output = bench(
        out, "--variants", "none,ours", "--concurrency", "1,4", "--num-prompts", "12",
        "--together", "--rounds", "2",
    )  # fmt: skip
    table = rows(out)
    assert set(table) == {("none", 1), ("none", 4), ("ours", 1), ("ours", 4)}
    ours, none = table["ours", 1], table["none", 1]
    assert none["acceptance_length"] == 1
    assert 2.4 < ours["acceptance_length"] == pytest.approx(1 + sum(ours["acceptance"]))
    # 12 texts of 32 tokens, by the clock of the whole load: vLLM's count of steps, and the prompts' own.
    load_ms, steps = 1000 * 12 * 32 / ours["tokens_per_s"]["median"], ours["drafts"] / 2 + 12
    assert ours["step_ms"] == pytest.approx(load_ms / steps, rel=0.2)
    assert ours["speedup"]["median"] == pytest.approx(
        ours["tokens_per_s"]["median"] / none["tokens_per_s"]["median"], rel=0.5
    )
    assert [len(row["runs"]) for row in table.values()] == [2] * 4
    assert [picture.name for picture in out.glob("*.png")] == ["speedup.png"]
    assert "concurrency 4" in output

    # What the machine was like, and what it was asked for.
    report = json.loads((out / "report.json").read_text())
    (share,) = {engine["gpu_memory_utilization"] for engine in report["engines"]}
    if not has_gpu():
        assert 0 < share <= 0.4  # of two engines beside each other
        assert f"gpu_memory_utilization {share:.2f}, unless --engine sets it." in output
    assert "load average" in output
    assert report["context"]["load_average"] >= 0
    assert all(row["other_cores"] >= 0 for row in table.values())

    # A report is not written over.
    bench(out, "--variants", "none", status=2)
    assert rows(out) == table


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)], ids=lambda n: n.name
)
def test_what_was_measured_is_reported_when_it_is_interrupted(tmp_path, number):
    """The second engine is interrupted as it starts, as by a user's Ctrl-C, or by `timeout`."""
    out = tmp_path / "bench"
    command, environment = started(out, "--num-prompts", "8")
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's & ignores it
    ) as process:  # fmt: skip
        second, end = out / "logs" / "stock_draft1_k4_1.log", time.monotonic() + 300
        while not second.exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.2)
        began = time.monotonic()
        process.send_signal(number)
        output, errors = process.communicate(timeout=120)
    print(f"It ended in {time.monotonic() - began:.1f} s.")
    assert process.returncode == 2, output + errors
    assert f"Interrupted. What was measured is in {out}." in errors
    assert set(rows(out)) == {("none", 1)}


def test_a_gated_draft_drafts_worse_in_stock_vllm(tmp_path):
    """Stock loads half of q_proj and says nothing; the acceptance does."""
    out = tmp_path / "bench"
    bench(out, "--variants", "stock,ours", "--num-prompts", "12", draft=TINY / "gated")
    table = rows(out)
    assert table["ours", 1]["acceptance_length"] > table["stock", 1]["acceptance_length"] + 0.5


def test_drafts_are_accepted_at_asked_rates(tmp_path):
    """By lot, in both kinds of engines of a CPU, greedy and at a temperature."""
    rates = [0.8, 0.5, 0.4, 0.2]
    for temperature in ("0", "1"):
        out = tmp_path / temperature
        bench(
            out, "--variants", "stock,ours", "--concurrency", "8", "--num-prompts", "40",
            "--temperature", temperature, "--synthetic-acceptance", ",".join(map(str, rates)),
        )  # fmt: skip
        for kind in ("stock", "ours"):
            # 40 texts of some 11 steps: a standard error of .024 at most.
            assert rows(out)[kind, 8]["acceptance"] == pytest.approx(rates, abs=0.1)


def as_a_user(command: str, out: Path) -> str:
    """Run a command as it stands on a page, with the environment of a user; return what it printed."""
    environment = engine_environment("v1")
    del environment["VLLM_CPU_KVCACHE_SPACE"]
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    result = subprocess.run(
        ["sh", "-c", f"{command.strip()} --result-dir {out}"], cwd=ROOT, env=environment,
        capture_output=True, text=True, timeout=3600, check=False,
    )  # fmt: skip
    print(result.stdout)
    assert (out / REPORT).exists(), result.stdout + result.stderr
    assert result.returncode == exit_code(report_in(out))
    return result.stdout


def report_in(out: Path) -> Report:
    return Report.model_validate_json((out / REPORT).read_text())


def test_the_command_of_the_page(tmp_path):
    """As it stands in docs/bench.md."""
    page = re.findall(r"```bash\n(.*?)```", (ROOT / "docs/bench.md").read_text(), re.DOTALL)
    (command,) = (block for block in page if "examples/tiny" in block)
    as_a_user(command, tmp_path)
    assert all(row["measured"] == 3 for row in rows(tmp_path).values())


@pytest.fixture(scope="module")
def scheduled(tmp_path_factory):
    """Report and output of the command in docs/adaptive.md, as it stands there."""
    out = tmp_path_factory.mktemp("schedule") / "out"
    (command,) = (block for block in blocks("bash", ADAPTIVE) if "--schedule" in block)
    output = as_a_user(command, out)
    assert (out / "schedule.png").read_bytes().startswith(b"\x89PNG")
    return report_in(out), output


def test_each_length_was_held(scheduled):
    """Of no more positions than K something is accepted, and of more positions more."""
    rows = scheduled[0].of("sweep")
    held = {(row.concurrency, row.variant.k) for row in rows if row.variant != PLAIN}
    assert held == {(n, k) for n in (1, 16) for k in range(5)}
    assert [row.measured for row in rows] == [2] * 2 * (1 + 5)
    for row in rows:
        k = row.variant.k
        assert row.step_ms > 0
        if not k:
            assert (row.acceptance_length, row.drafts) == (1, 0)
        else:
            assert len(row.accepted) == 4  # positions that vLLM counts: of the engine's K
            assert sum(row.accepted[k:]) == 0
            assert row.drafts > 0
            assert sum(row.accepted) > 0
            assert row.acceptance_length == pytest.approx(1 + sum(row.accepted) / row.drafts)
    one, four = (sum(row.acceptance_length for row in rows if row.variant.k == k) for k in (1, 4))
    assert four > 1.3 * one


def test_what_is_printed_is_what_was_measured(scheduled):
    report, output = scheduled
    choice = report.choice
    if choice.served == PLAIN:  # on a machine as busy as that
        assert "serve without a draft" in output
        return
    printed = re.search(r"--speculative-config '(.*?)'", output)
    assert json.loads(printed[1]) == choice.config.speculative_config
    served = [row for row in report.of("closing") if row.variant == choice.served]
    assert [row.concurrency for row in served] == [1, 16]
    assert all(row.speedup.low <= row.speedup.median <= row.speedup.high for row in served)
    assert choice.gain.pairs == 2


def test_json(tmp_path):
    """Of step times alone, with a key of another plugin."""
    engine = ENGINE | {"additional_config": {"other_plugin": 1}}
    out = tmp_path / "out"
    loads = ("--schedule", "-k", "1,4", "--concurrency", "4", "--context", "64", "--rounds", "1")
    words = (*loads, "--steps", "16", "--surface-only", "--json", "--engine", json.dumps(engine))
    doc = json.loads(bench(out, *words))
    assert (doc.pop("schema_version"), doc.pop("exit_code")) == (SCHEMA, 0)
    report = Report.model_validate(doc)
    assert (report.choice, report.of("closing")) == (None, [])
    assert report == report_in(out)
