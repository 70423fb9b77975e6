"""Every command and program in the README is run by a test."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.engine import ROOT, engine_environment
from tests.support.server import free_port, wait_until_ready

README = (ROOT / "README.md").read_text()

# Command -> the test that runs it, or what CI runs.
RUN_BY = {
    "make demo": "tests/e2e/test_readme.py",
    "make test": ".ci/run",
    "make lint": ".ci/run",
    "make test-long": "tests/e2e/test_readme.py",  # by its marker: `make test-long` runs those tests
    "make contract VLLM=0.33.0": "tests/e2e/test_readme.py",
    "make bench-guard": "tests/unit/benchmarks/test_guard.py",  # what it lets pass
    "make build": "tests/e2e/test_readme.py",
    "pip install '.[cuda]'": "tests/e2e/test_packaging.py",
    "pip install '.[bench]'": "tests/e2e/test_packaging.py",
    "vllm serve": "tests/e2e/test_readme.py",
    "vllm-eagle status": "tests/unit/cli/test_status.py",
    "vllm-eagle check": "tests/e2e/test_readme.py",
    "vllm-eagle plan": "tests/e2e/test_readme.py",
    "vllm-eagle verify": "tests/e2e/test_verify.py",
    "vllm-eagle bench": "tests/e2e/test_bench.py",
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_every_command_is_known_to_a_test():
    commands = [
        line
        for block in blocks("bash")
        for line in re.sub(r"\\\n", " ", block).splitlines()
        if line and not line.startswith((" ", "}", "#"))
    ]
    assert len(commands) >= 9
    for command in commands:
        known = next((file for name, file in RUN_BY.items() if command.startswith(name)), None)
        assert known is not None, f"no test runs {command!r}"
        assert (ROOT / known).exists()


def test_plan_block(tmp_path):
    """The target's published sizes in place of the hub's file."""
    model = "Qwen/Qwen3.6-27B"
    fixture = json.loads((ROOT / "tests/fixtures/hybrid/qwen3_6_27b.json").read_text())
    folder = tmp_path / model
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(fixture["config"]))
    command = next(b for b in blocks("bash") if b.startswith("vllm-eagle plan")).split()
    command[0] = str(Path(sys.executable).parent / command[0])
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    shown = next(b for b in blocks("text") if b.startswith(model))
    assert " ".join(shown.split()) == " ".join(result.stdout.split())


def test_check_block():
    command = next(b for b in blocks("bash") if b.startswith("vllm-eagle check")).split()
    command[0] = str(Path(sys.executable).parent / command[0])
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    shown = next(b for b in blocks("text") if b.startswith("examples/tiny/postnorm"))
    assert " ".join(shown.split()) == " ".join(result.stdout.split())


def test_ci_runs_lint_and_test():
    script = (ROOT / ".ci/run").read_text()
    assert "make lint" in script
    assert "make test" in script


@pytest.mark.e2e
@pytest.mark.long
def test_vllm_serve_block():
    block = next(b for b in blocks("bash") if b.startswith("vllm serve"))
    environment = engine_environment("v1")
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    port = free_port()
    assert "--port 8000" in block
    command = block.replace("--port 8000", f"--port {port}")
    process = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=ROOT, env=environment)
    try:
        wait_until_ready(process, f"http://127.0.0.1:{port}")
        body = {"model": "tiny", "prompt": "import os\n", "max_tokens": 8}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] == 8
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


@pytest.mark.e2e
@pytest.mark.long
def test_llm_block(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(blocks("python")[0])
    result = subprocess.run(
        [sys.executable, str(program)],
        cwd=ROOT,
        env=engine_environment("v1"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    said = " ".join(next(b for b in blocks("text") if b.startswith("Draft")).split())
    assert said in " ".join(result.stdout.split())


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("make contract VLLM=0.33.0", "vLLM 0.33.0"),
        ("make build", "Successfully built"),
        ("make demo", "speed-up"),
    ],
)
def test_make_target(command, said):
    result = subprocess.run(
        command.split(), cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert said in result.stdout
