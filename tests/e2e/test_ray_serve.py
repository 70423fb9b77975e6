"""examples/ray_serve.py answers, and its answers have the draft's acceptance."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import httpx
import pytest

from tests.support.engine import ROOT, engine_environment
from tests.support.processes import kill, marked, wait_for_end
from tests.support.server import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.long]

START_S, K, TOKENS = 600, 4, 64
MARK = "EAGLE_EXT_RAY_SERVE"  # in the environment of all that Ray starts
BODY = {"prompt": "import os\n\ndef read(path):\n", "max_tokens": TOKENS}
RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # listen on the loopback interface only
    "RAY_DISABLE_IMPORT_WARNING": "1",
}


@pytest.fixture
def served(request, tmp_path):
    """URL and log of one kind of server; all of it ends with the test."""
    mark, port, log = uuid.uuid4().hex, free_port(), tmp_path / "log"
    environment = engine_environment("v1") | RAY | {MARK: mark}
    del environment["VLLM_CPU_KVCACHE_SPACE"]  # the example must set what a CPU needs
    with tempfile.TemporaryDirectory(prefix="ray") as folder, log.open("w") as stream:  # a short path
        program = subprocess.Popen(
            [sys.executable, "-m", "examples.ray_serve", request.param, f"--port={port}"],
            cwd=ROOT,
            env=environment | {"RAY_TMPDIR": folder},
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until_ready(program, log)
            assert len(marked(MARK, mark)) > 5
            yield f"http://127.0.0.1:{port}", log
            program.send_signal(signal.SIGINT)
            program.wait(60)
            assert not wait_for_end(marked(MARK, mark))
        finally:
            kill(marked(MARK, mark))


def wait_until_ready(program: subprocess.Popen, log: Path) -> None:
    """`serve.run` says so once the replica has its engine."""
    deadline = time.monotonic() + START_S
    while "is ready at" not in log.read_text():
        assert program.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(1)


def assert_drafted(acceptance: dict, log: Path) -> None:
    print(acceptance)
    steps, accepted = acceptance["num_spec_steps"], acceptance["num_accepted_draft_tokens"]
    # A step gives its accepted tokens and one more; the first token of a text comes without a draft.
    assert TOKENS <= 1 + steps + accepted <= TOKENS + K
    assert accepted > steps
    assert "Eagle3EagleExtLlamaForCausalLM" in log.read_text()


@pytest.mark.parametrize("served", ["llm"], indirect=True)
def test_the_openai_server_answers_with_its_acceptance(served):
    url, log = served
    body = BODY | {"model": "tiny", "temperature": 0}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status().json()
    assert answer["usage"]["completion_tokens"] == TOKENS
    assert_drafted(answer["metrics"]["speculative_decoding"], log)


@pytest.mark.parametrize("served", ["plain"], indirect=True)
def test_a_deployment_of_one_s_own_answers_with_its_acceptance(served):
    url, log = served
    answer = httpx.post(url, json=BODY, timeout=120).raise_for_status().json()
    assert answer["text"]
    assert_drafted(answer["acceptance"], log)
