"""`vllm-eagle bench` on the tiny pairs: variants side by side, an interrupted bench, a misread draft."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engine import IN_PROCESS, ROOT, TINY, engine_environment, has_gpu

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ENGINE = {"max_model_len": 1024, "enforce_eager": True}


def bench(out: Path, *arguments: str, draft: Path = TINY / "postnorm", status: int = 0) -> str:
    command = [str(Path(sys.executable).parent / "vllm-eagle"), "bench"]
    command += ["--target", str(TINY / "target"), "--draft", str(draft), "-k", "4", "--rounds", "1"]
    command += ["--prompts", str(TINY / "prompts.jsonl"), "--no-chat-template", "--ignore-eos"]
    command += ["--max-tokens", "32", "--engine", json.dumps(ENGINE), "--out", str(out), *arguments]
    environment = engine_environment("v1") | IN_PROCESS | {"COLUMNS": "120"}
    del environment["VLLM_CPU_KVCACHE_SPACE"]  # as a user's: what is free decides
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == status, result.stdout + result.stderr
    print(result.stdout)
    return result.stdout


def rows(out: Path):
    report = json.loads((out / "report.json").read_text())
    return {(row["variant"]["kind"], row["concurrency"]): row for row in report["rows"]}


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines(keepends=True)


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
    assert 0 < ours["theory"]["of_bound"] < 1
    assert {picture.name for picture in out.glob("*.png")} >= {
        "speedup.png",
        "acceptance.png",
        "steps.png",
    }
    assert "concurrency 4" in output

    # What the machine was like, and what it was asked for.
    report = json.loads((out / "report.json").read_text())
    (share,) = {engine["gpu_memory_utilization"] for engine in report["engines"]}
    if not has_gpu():
        assert 0 < share <= 0.4  # of two engines beside each other
        assert f"gpu_memory_utilization {share:.2f}, unless --engine sets it." in output
    assert "A small model on a CPU takes about" in output
    assert "load average" in output
    assert report["context"]["load_average"] >= 0
    assert all(row["other_cores"] >= 0 for row in found.values())

    # The same command again starts nothing, and writes the same report.
    before = lines(out / "measurements.jsonl")
    bench(out, "--variants", "none,ours", "--concurrency", "1,4", "--num-prompts", "12",
          "--together", "--rounds", "2")  # fmt: skip
    assert lines(out / "measurements.jsonl") == before
    assert rows(out) == found


def test_an_interrupted_bench_goes_on(tmp_path):
    """A measurement of the stock engine is taken away: that one alone is made again."""
    out = tmp_path / "bench"
    common = ("--concurrency", "1,4", "--num-prompts", "8")
    bench(out, *common)
    file = out / "measurements.jsonl"
    before = lines(file)
    assert len(before) == 6
    lost = next(line for line in before if '"stock"' in line and '"concurrency":4' in line)
    file.write_text("".join(line for line in before if line != lost))
    bench(out, *common)
    assert lines(file)[:5] == [line for line in before if line != lost]
    again = json.loads(lines(file)[5])
    assert (again["variant"]["kind"], again["concurrency"]) == ("stock", 4)
    bench(out, "--concurrency", "1", "--num-prompts", "8", status=2)


def test_a_gated_draft_drafts_worse_in_stock_vllm(tmp_path):
    """Stock loads half of q_proj and says nothing; the acceptance does."""
    out = tmp_path / "bench"
    bench(out, "--variants", "stock,ours", "--num-prompts", "12", draft=TINY / "gated")
    found = rows(out)
    assert found["ours", 1]["acceptance_length"] > found["stock", 1]["acceptance_length"] + 0.5


def test_a_config_is_one_more_variant(tmp_path):
    """A schedule with K = 4 for one request and 1 for more: as many tokens are drafted in a step."""
    key = "num_speculative_tokens_per_batch_size"
    config = {"method": "eagle3", "model": str(TINY / "postnorm"), "num_speculative_tokens": 4}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"speculative_config": config | {key: [[1, 1, 4], [2, 8, 1]]}}))
    out = tmp_path / "bench"
    common = ("--variants", "none", "--config", str(file), "--concurrency", "1,4", "--num-prompts", "8")
    output = bench(out, *common)
    assert set(found := rows(out)) == {("none", 1), ("none", 4), ("config", 1), ("config", 4)}
    alone, together = found["config", 1], found["config", 4]
    assert alone["acceptance_length"] > 2.4 > 2 >= together["acceptance_length"] > 1
    assert sum(together["accepted"][1:]) < 0.1 * sum(together["accepted"])  # the last request is alone
    assert all(row["measured"] == 1 and row["speedup"] for row in (alone, together))
    assert re.search(r"^config +postnorm +4/1 ", output, re.MULTILINE)
    drawn = [json.loads(line)["variant"]["kind"] for line in lines(out / "engines.jsonl")]
    assert drawn == ["none", "config"]


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
