"""Two replicas of two ranks each, behind one `vllm serve`, with states kept by replay: each replica
drafts, and texts are those of one rank without a draft."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.support.engine import TINY
from tests.support.hybrid import TARGET, HybridRun, run_all
from tests.support.near_ties import assert_only_near_ties
from tests.support.server import Server

pytestmark = [pytest.mark.e2e, pytest.mark.long]

K, TOKENS, REQUESTS = 7, 48, 8
ACCEPTED = re.compile(r'vllm:spec_decode_num_accepted_tokens_total\{engine="(\d)".*\} ([\d.]+)')


@pytest.fixture(scope="module")
def texts(prompts):
    return prompts[:REQUESTS]


@pytest.fixture(scope="module")
def plain(texts):
    run = HybridRun("plain", prompts=texts, max_tokens=TOKENS, logprobs=5)
    return run_all([run])[0]["plain"]


@pytest.fixture(scope="module")
def served(texts, tmp_path_factory):
    """Texts as token ids, accepted tokens by replica, and the log."""
    log = tmp_path_factory.mktemp("replicas") / "log"
    arguments = [
        "--data-parallel-size=2",
        "--tensor-parallel-size=2",
        "--api-server-count=1",
        "--no-enable-prefix-caching",
        "--gpu-memory-utilization=0.08",
        "--additional-config",
        json.dumps({"eagle_ext": {"hybrid_state": "replay"}}),
    ]
    with Server(
        draft=TINY / "dflash",
        k=K,
        log=log,
        arguments=arguments,
        target=TARGET,
        method="dflash",
        environment={"VLLM_CPU_OMP_THREADS_BIND": "0|1|0|1"},
    ) as server:

        def complete(prompt: list[int]) -> list[int]:
            body = {"model": "tiny", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
            body |= {"ignore_eos": True, "return_token_ids": True}
            answer = httpx.post(f"{server.url}/completions", json=body, timeout=300).raise_for_status()
            return answer.json()["choices"][0]["token_ids"]

        with ThreadPoolExecutor(REQUESTS) as pool:
            tokens = list(pool.map(complete, texts))
        metrics = httpx.get(f"{server.root_url}/metrics", timeout=60).text
    return tokens, {rank: float(count) for rank, count in ACCEPTED.findall(metrics)}, log.read_text()


def test_texts_are_those_of_one_rank_without_a_draft(served, plain):
    assert_only_near_ties(plain, served[0], "replicas")


def test_each_replica_drafts(served):
    _, accepted, log = served
    print(f"\naccepted tokens by replica: {accepted}")
    assert set(accepted) == {"0", "1"}
    assert min(accepted.values()) > 20
    assert "replay" in log
