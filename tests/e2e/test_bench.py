"""`vllm-eagle bench` on the tiny pairs: variants side by side, an interrupted bench, a misread draft."""

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

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ENGINE = {"max_model_len": 1024, "enforce_eager": True}


def started(out: Path, *arguments: str, draft: Path = TINY / "postnorm") -> tuple[list[str], dict]:
    """The command, and its environment."""
    command = [str(Path(sys.executable).parent / "vllm-eagle"), "bench"]
    command += [str(draft), "--target", str(TINY / "target"), "-k", "4", "--rounds", "1"]
    command += ["--prompts", str(TINY / "prompts.jsonl"), "--no-chat-template", "--ignore-eos"]
    command += ["--max-tokens", "32", "--engine", json.dumps(ENGINE), "--out", str(out), *arguments]
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
    found = rows(out)
    assert set(found) == {("none", 1), ("none", 4), ("ours", 1), ("ours", 4)}
    ours, none = found["ours", 1], found["none", 1]
    assert none["acceptance_length"] == 1
    assert 2.4 < ours["acceptance_length"] == pytest.approx(1 + sum(ours["acceptance"]))
    # Of 32 tokens, a cut last step is worth some percent.
    assert ours["step_ms"] == pytest.approx(ours["tpot_ms"]["mean"] * ours["acceptance_length"], rel=0.2)
    assert ours["speedup"]["median"] == pytest.approx(
        ours["tokens_per_s"]["median"] / none["tokens_per_s"]["median"], rel=0.5
    )
    assert 0 < ours["draft_share"] < 1
    assert [len(row["runs"]) for row in found.values()] == [2] * 4
    assert [picture.name for picture in out.glob("*.png")] == ["speedup.png"]
    assert "concurrency 4" in output

    # What the machine was like, and what it was asked for.
    report = json.loads((out / "report.json").read_text())
    (share,) = {engine["gpu_memory_utilization"] for engine in report["engines"]}
    if not has_gpu():
        assert 0 < share <= 0.4  # of two engines beside each other
        assert f"gpu_memory_utilization {share:.2f}, unless --engine sets it." in output
    assert "More --repeats, --num-prompts and --max-tokens take longer" in output
    assert "load average" in output
    assert report["context"]["load_average"] >= 0
    assert all(row["other_cores"] >= 0 for row in found.values())

    # A report is not written over.
    bench(out, "--variants", "none", status=2)
    assert rows(out) == found


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
    found = rows(out)
    assert found["ours", 1]["acceptance_length"] > found["stock", 1]["acceptance_length"] + 0.5


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


def test_the_command_of_the_page(tmp_path):
    """As it stands in docs/bench.md, with the environment of a user."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs/bench.md").read_text(), re.DOTALL)
    (command,) = (block for block in blocks if "examples/tiny" in block)
    environment = engine_environment("v1")
    del environment["VLLM_CPU_KVCACHE_SPACE"]
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    result = subprocess.run(
        ["sh", "-c", f"{command.strip()} --out {tmp_path / 'bench'}"], cwd=ROOT, env=environment,
        capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    print(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr
    assert all(row["measured"] == 3 for row in rows(tmp_path / "bench").values())
