"""`vllm serve` with the post-norm draft, driven by the openai client."""

from __future__ import annotations

import asyncio
import re
import shlex
import socket
import subprocess
import sys

import httpx
import openai
import pytest

from tests.support.dense import MAX_TOKENS, K
from tests.support.engine import ROOT, TINY
from tests.support.server import Server, assert_first_log, recipe

pytestmark = pytest.mark.e2e

CHUNK = 256  # of prefill, so that the long prompt needs three


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """`make serve`, with options for these tests."""
    log = tmp_path_factory.mktemp("server") / "server.log"
    server = Server(draft=TINY / "postnorm", k=K, log=log)
    arguments = f"--max-num-batched-tokens={CHUNK} --max-num-seqs=8 --dtype=float32"
    arguments += " --per-request-spec-decode-metrics=summary"
    server.command = shlex.split(recipe("serve", PORT=server.port, ARGS=arguments))
    with server as running:
        yield running


def test_the_first_log_of_make_serve(server):
    assert_first_log(server.log.read_text())


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as running:
        yield running


GREEDY = {
    "model": "tiny",
    "temperature": 0,
    "max_tokens": MAX_TOKENS,
    "extra_body": {"ignore_eos": True},
}
WITH_IDS = {**GREEDY, "extra_body": {"ignore_eos": True, "return_token_ids": True}}


def assert_same(in_float32, indices, answers):
    """float32: no near-ties."""
    plain = in_float32[0]["plain"]["tokens"]
    assert [answer.choices[0].token_ids for answer in answers] == [plain[i] for i in indices]


@pytest.mark.promise("`vllm serve` answers a client as without a draft")
def test_completion_is_the_text_without_a_draft(client, prompts, in_float32):
    answers = [client.completions.create(prompt=p, **WITH_IDS) for p in prompts[:8]]
    assert_same(in_float32, range(8), answers)


def test_prompt_longer_than_a_prefill_chunk(client, long_prompt, in_float32):
    assert len(long_prompt) > 2 * CHUNK
    answer = client.completions.create(prompt=long_prompt, **WITH_IDS)
    assert_same(in_float32, [-1], [answer])


async def ask_all(server, prompts) -> list[openai.types.Completion]:
    async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        asking = (client.completions.create(prompt=p, **WITH_IDS) for p in prompts)
        return await asyncio.gather(*asking)


def test_eight_concurrent_requests(server, prompts, in_float32):
    assert_same(in_float32, range(8), asyncio.run(ask_all(server, prompts[:8])))


def test_streamed_completion_is_the_whole_one(client, prompts):
    whole = client.completions.create(prompt=prompts[0], **GREEDY).choices[0].text
    stream = client.completions.create(prompt=prompts[0], stream=True, **GREEDY)
    pieces = [chunk.choices[0].text for chunk in stream if chunk.choices]
    assert "".join(pieces) == whole
    assert len(pieces) < MAX_TOKENS  # a step emits several tokens at once


def test_the_client_of_the_examples(server):
    """Both answers are the same, and so is how many of their drafted tokens were accepted."""
    command = [sys.executable, "-m", "examples.client", f"--base-url={server.url}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    whole, streamed = re.findall(r"(.*?)\n\[\w+\] ([^\n]+)\n", done.stdout, re.DOTALL)
    assert whole == streamed
    length, accepted, drafted = map(float, re.findall(r"[\d.]+", whole[1]))
    assert 1 < length == pytest.approx(1 + K * accepted / drafted, abs=0.005)


def counters(server) -> tuple[float, list[float]]:
    """Drafts, and accepted tokens per position."""
    page: dict[str, list[float]] = {}
    for line in httpx.get(f"{server.root_url}/metrics").text.splitlines():
        if line.startswith("vllm:spec_decode_num_"):
            page.setdefault(line.split("{")[0], []).append(float(line.rsplit(" ", 1)[1]))
    per_position = page["vllm:spec_decode_num_accepted_tokens_per_pos_total"]
    assert page["vllm:spec_decode_num_accepted_tokens_total"] == [sum(per_position)]
    return page["vllm:spec_decode_num_drafts_total"][0], per_position


@pytest.mark.promise("acceptance is in vLLM's own metrics")
def test_metrics_count_accepted_drafts(server, prompts, long_prompt, in_float32):
    """As an engine without a server counts them: exactly, because no text diverges in float32."""
    before = counters(server)
    asked = [*prompts, long_prompt]
    answers = asyncio.run(ask_all(server, asked))
    after = counters(server)
    assert_same(in_float32, range(len(asked)), answers)
    counted = [after[0] - before[0], *(b - a for a, b in zip(before[1], after[1], strict=True))]
    engine = in_float32[0]["postnorm"]["counters"]
    expected = [
        engine["spec_decode_num_drafts"],
        *engine["spec_decode_num_accepted_tokens_per_pos"],
    ]
    print(f"\ndrafts, and accepted per position: {counted}; the engine: {expected}")
    assert sum(counted[1:]) > 0
    assert counted == expected


def test_ends_on_interrupt_and_frees_its_port(server):
    """Last in this module: it ends the server."""
    server.stop()
    assert server.process.returncode in (0, -2, 130)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", server.port)) != 0
    assert server.log.read_text().count("the inputs of target layers [2, 4, 6, 8, 10]") == 1
