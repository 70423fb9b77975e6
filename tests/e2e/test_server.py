"""`vllm serve` with the post-norm draft, driven by the openai client."""

from __future__ import annotations

import asyncio
import socket

import httpx
import openai
import pytest

from tests.e2e.conftest import MAX_TOKENS, K
from tests.support.engine import TINY
from tests.support.near_ties import NEAR_TIE_GAP, near_tie_gaps
from tests.support.server import Server

pytestmark = pytest.mark.e2e

CHUNK = 256  # of prefill, so that the long prompt needs three


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "server.log"
    arguments = [f"--max-num-batched-tokens={CHUNK}", "--max-num-seqs=8"]
    with Server(draft=TINY / "postnorm", k=K, log=log, arguments=arguments) as running:
        yield running


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


def assert_texts_diverge_at_near_ties_only(plain, indices, answers):
    gaps = near_tie_gaps(
        [plain.outputs[i] for i in indices],
        [plain.logprobs[i] for i in indices],
        [answer.choices[0].token_ids for answer in answers],
    )
    print(f"\n{len(gaps)} of {len(answers)} texts diverge, near-tie gaps {sorted(gaps)}")
    assert max(gaps, default=0.0) <= NEAR_TIE_GAP


def test_completion_is_the_text_without_a_draft(client, prompts, plain):
    answers = [client.completions.create(prompt=p, **WITH_IDS) for p in prompts[:8]]
    assert_texts_diverge_at_near_ties_only(plain, range(8), answers)


def test_prompt_longer_than_a_prefill_chunk(client, long_prompt, plain):
    assert len(long_prompt) > 2 * CHUNK
    answer = client.completions.create(prompt=long_prompt, **WITH_IDS)
    assert_texts_diverge_at_near_ties_only(plain, [-1], [answer])


def test_eight_concurrent_requests(server, prompts, plain):
    async def ask_all() -> list[openai.types.Completion]:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
            asking = (client.completions.create(prompt=p, **WITH_IDS) for p in prompts[:8])
            return await asyncio.gather(*asking)

    assert_texts_diverge_at_near_ties_only(plain, range(8), asyncio.run(ask_all()))


def test_streamed_completion_is_the_whole_one(client, prompts):
    whole = client.completions.create(prompt=prompts[0], **GREEDY).choices[0].text
    stream = client.completions.create(prompt=prompts[0], stream=True, **GREEDY)
    pieces = [chunk.choices[0].text for chunk in stream if chunk.choices]
    assert "".join(pieces) == whole
    assert len(pieces) < MAX_TOKENS  # a step emits several tokens at once


def test_chat_whole_and_streamed(client):
    messages = [{"role": "user", "content": "import os\n\ndef read(path):\n"}]
    whole = client.chat.completions.create(messages=messages, **GREEDY).choices[0].message.content
    stream = client.chat.completions.create(messages=messages, stream=True, **GREEDY)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert whole
    assert "".join(pieces) == whole


def counters(server) -> tuple[float, list[float]]:
    """Drafts, and accepted tokens per position."""
    found: dict[str, list[float]] = {}
    for line in httpx.get(f"{server.root_url}/metrics").text.splitlines():
        if line.startswith("vllm:spec_decode_num_"):
            found.setdefault(line.split("{")[0], []).append(float(line.rsplit(" ", 1)[1]))
    per_position = found["vllm:spec_decode_num_accepted_tokens_per_pos_total"]
    assert found["vllm:spec_decode_num_accepted_tokens_total"] == [sum(per_position)]
    return found["vllm:spec_decode_num_drafts_total"][0], per_position


def test_metrics_count_accepted_drafts(server, client, prompts, v1_postnorm):
    """As an engine without a server counts them: exactly, where no text diverges at a near-tie."""
    before = counters(server)
    answers = [client.completions.create(prompt=p, **WITH_IDS) for p in prompts]
    after = counters(server)
    parted = sum(
        answer.choices[0].token_ids != output
        for answer, output in zip(answers, v1_postnorm.outputs, strict=True)
    )
    drafts = after[0] - before[0]
    per_position = [b - a for a, b in zip(before[1], after[1], strict=True)]
    print(f"\n{drafts} drafts, {per_position} accepted; the engine: {v1_postnorm.num_drafts} drafts, "
          f"{v1_postnorm.accepted_per_position}; {parted} of {len(prompts)} texts diverge")  # fmt: skip
    assert sum(per_position) > 0
    assert parted <= 0.05 * len(prompts)
    counted = [drafts, *per_position]
    expected = [v1_postnorm.num_drafts, *v1_postnorm.accepted_per_position]
    assert max(abs(a - b) for a, b in zip(counted, expected, strict=True)) <= parted * MAX_TOKENS


def test_ends_on_interrupt_and_frees_its_port(server):
    """Last in this module: it ends the server."""
    server.stop()
    assert server.process.returncode in (0, -2, 130)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", server.port)) != 0
    assert server.log.read_text().count("the inputs of target layers [2, 4, 6, 8, 10]") == 1
