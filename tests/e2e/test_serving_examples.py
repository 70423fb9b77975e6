"""The commands of examples/serving, as they stand there but for ports, addresses and interfaces."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.dense import MAX_TOKENS, STOCK, dense
from tests.support.engine import ROOT, engine_environment
from tests.support.hybrid import started
from tests.support.near_ties import assert_only_near_ties
from tests.support.ray_cluster import Node, RayCluster, ray_path
from tests.support.server import STOP_TIMEOUT_S, free_port, wait_until_ready

pytestmark = [pytest.mark.e2e, pytest.mark.long]

TEXT = (ROOT / "examples/serving/README.md").read_text()
ONE, _, SEVERAL, *TWO_NODES = re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
ADDRESSES = {"192.0.2.10": "127.0.0.2", "192.0.2.11": "127.0.0.3", "=eth0": "=lo"}
# Dynamo without Inductor, one core for each rank.
CPU = {"VLLM_CPU_CI_ENV": "1", "VLLM_CPU_OMP_THREADS_BIND": "0|1"}


@contextlib.contextmanager
def served(command: str, environment: Mapping[str, str]) -> Iterator[str]:
    """The server's root URL; the server ends with the block."""
    port = free_port()
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command.rstrip()} --port {port}"],
        cwd=ROOT,
        env={**environment, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"},
        start_new_session=True,
    )
    try:
        wait_until_ready(process, f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def plain_on_two(prompts):
    """Two ranks add halves of each sum in bf16: their texts may leave those of one at larger gaps."""
    two = {"tensor_parallel_size": 2}
    run = dense("plain", prompts=prompts[:4], logprobs=5, engine_args=two)
    return started([run], **STOCK, **CPU)["plain"]


@pytest.fixture
def assert_serves(prompts):
    """Texts as those without a draft up to near-ties, and every engine drafts."""

    def check(root_url: str, plain: dict[str, Any], engines: int = 1) -> None:
        count = 4 * engines
        texts = [ask(root_url, prompt) for prompt in prompts[:count]]
        assert_only_near_ties(plain, texts, root_url)
        metrics = httpx.get(f"{root_url}/metrics").text
        drafts = re.findall(r"^vllm:spec_decode_num_drafts_total\{.*\} (\S+)$", metrics, re.MULTILINE)
        assert len(drafts) == engines
        assert min(map(float, drafts)) > MAX_TOKENS / 4

    return check


def ask(root_url: str, prompt: list[int]) -> list[int]:
    body = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    answer = httpx.post(f"{root_url}/v1/completions", json=body, timeout=120).json()
    return answer["choices"][0]["token_ids"]


def test_one_gpu(assert_serves, plain):
    with served(ONE, engine_environment("v1") | CPU) as root_url:
        assert_serves(root_url, plain)


def test_several_gpus(assert_serves, plain_on_two):
    with served(SEVERAL, engine_environment("v1") | CPU) as root_url:
        assert_serves(root_url, plain_on_two)


def node_of(block: str, port: int) -> Node:
    """A block of `export` lines and one `ray start`."""
    for name, here in ADDRESSES.items():
        block = block.replace(name, here)
    *exports, start = block.replace("6379", str(port)).strip().splitlines()
    words = [word for line in exports for word in shlex.split(line.removeprefix("export "))]
    variables = dict(word.split("=", 1) for word in words)
    return Node(
        address=variables["VLLM_HOST_IP"], environment=variables, start=tuple(shlex.split(start))
    )


def test_two_nodes(assert_serves, plain_on_two):
    first, second, command = TWO_NODES
    environment = ray_path(engine_environment("v1"))
    port = free_port()
    nodes = [node_of(first, port), node_of(second, port)]
    with RayCluster(environment, nodes, port=port) as cluster:
        driver = environment | cluster.environment | nodes[0].environment | CPU
        with served(command, driver) as root_url:
            assert_serves(root_url, plain_on_two)
