"""The programs of docs/usage.md, as pasted into a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.engine import ROOT, TIMEOUT_S, engine_environment
from tests.support.readme import USAGE, blocks, commands, split
from tests.support.server import (
    STOP_TIMEOUT_S,
    assert_first_log,
    free_port,
    recipe,
    wait_until_ready,
)


@pytest.fixture(scope="module")
def users():
    """The environment of a user."""
    environment = engine_environment("v1")
    del environment["VLLM_CPU_KVCACHE_SPACE"]  # with it vLLM does not ask how much memory is free
    return environment | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"}


def test_make_serve_runs_what_is_shown():
    shown = [split(line)[1] for line in commands(blocks("bash", USAGE)[2])][-1]
    made = split(recipe("serve"))[1]
    assert shown[2:4] == ["vllm", "serve"]
    assert made[1:4] == ["tools/preload.py", ".venv/bin/vllm", "serve"]
    assert values(shown) == values(made)


def values(words: list[str]) -> list[object]:
    """Words, those that are JSON without their blanks."""
    return [json.loads(word) if word.startswith("{") else word for word in words[4:]]


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize("number", [1, 2], ids=["make serve", "what it runs"])
def test_serve_blocks(number, users, tmp_path):
    """As pasted into a terminal, but for the port and the set-up, which has been run."""
    port, block = free_port(), blocks("bash", USAGE)[number]
    environment = users | {"PORT": str(port), "PYTHON": "true"}
    for name in ("LD_PRELOAD", "MAKEFLAGS", "PATH"):  # the block has to see to them
        environment.pop(name, None)
    log = tmp_path / "log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            ["bash", "-c", block.replace("--port 8000", f"--port {port}")],
            cwd=ROOT, env=environment | {"PATH": os.defpath}, start_new_session=True,
            stdout=stream, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        wait_until_ready(process, f"http://127.0.0.1:{port}", TIMEOUT_S)
        body = {"model": "tiny", "prompt": "import os\n", "max_tokens": 8}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] == 8
    finally:
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert_first_log(log.read_text())


@pytest.mark.e2e
@pytest.mark.long
def test_llm_block(users, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(blocks("python", USAGE)[0])
    result = subprocess.run(
        [sys.executable, str(program)],
        cwd=ROOT,
        env=users,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    shown = next(block for block in blocks("text", USAGE) if block.startswith("vllm-eagle-ext: Draft"))
    assert " ".join(shown.split()) in " ".join(result.stdout.split())
