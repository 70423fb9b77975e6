"""Sends a soak's requests, 64 at a time, and judges each answer as it comes."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.soak.mix import GreedyJob, Mix, Request
from tests.support.near_ties import near_tie_gaps

PATIENCE_S = 180  # for any answer; longer is an error
MOST_ERRORS = 20  # kept with their words


@dataclass(frozen=True)
class Solo:
    """A greedy answer without company: tokens, and per token the logged log-probabilities."""

    tokens: list[int]
    logprobs: list[dict[str, float]]


@dataclass
class Tally:
    sent: Counter[str] = field(default_factory=Counter)  # by kind
    ends: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    error_count: int = 0
    abandoned: int = 0  # before their end
    compared: int = 0  # greedy answers, parts of abandoned ones among them
    compared_tokens: int = 0
    gaps: list[float] = field(default_factory=list)  # of answers that part from the solo one

    def fail(self, request: Request, words: str) -> None:
        self.error_count += 1
        if len(self.errors) < MOST_ERRORS:
            self.errors.append(f"{request.kind}, {request.end}: {words}")


@dataclass
class Answer:
    texts: dict[int, str] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)

    def add(self, piece: dict[str, Any]) -> None:
        for choice in piece["choices"]:
            index, message = choice["index"], choice.get("message") or choice.get("delta") or {}
            text = choice.get("text") or message.get("content") or ""
            self.texts[index] = self.texts.get(index, "") + text
            self.tokens += choice.get("token_ids") or []
            if choice["finish_reason"]:
                self.reasons[index] = choice["finish_reason"]


class Load:
    """Holds so many requests in flight until the time is over."""

    def __init__(self, url: str, mix: Mix, solo: list[Solo]) -> None:
        self.url = url
        self.mix = mix
        self.solo = solo
        self.tally = Tally()

    async def run(self, width: int, seconds: float) -> None:
        limits = httpx.Limits(max_connections=2 * width)
        async with httpx.AsyncClient(timeout=PATIENCE_S, limits=limits) as client:
            end = time.monotonic() + seconds
            await asyncio.gather(*(self._keep_asking(client, end) for _ in range(width)))

    async def _keep_asking(self, client: httpx.AsyncClient, end: float) -> None:
        while time.monotonic() < end:
            request = self.mix.deal()
            self.tally.sent[request.kind] += 1
            self.tally.ends[request.end] += 1
            try:
                await self._ask(client, request)
            except (httpx.HTTPError, OSError, ValueError, KeyError) as error:
                self.tally.fail(request, f"{type(error).__name__}: {error}")

    async def _ask(self, client: httpx.AsyncClient, request: Request) -> None:
        if request.end == "drop":
            await self._drop(request)
        elif request.end == "cancel":
            try:
                async with asyncio.timeout(request.patience):
                    await self._whole(client, request)
            except TimeoutError:
                self.tally.abandoned += 1
        elif request.body["stream"]:
            await self._stream(client, request)
        else:
            await self._whole(client, request)

    async def _whole(self, client: httpx.AsyncClient, request: Request) -> None:
        reply = await client.post(self.url + request.path, json=request.body)
        if reply.status_code != 200:
            self.tally.fail(request, f"{reply.status_code} {reply.text[:300]}")
            return
        answer = Answer()
        answer.add(reply.json())
        self._judge(request, answer, complete=True)

    async def _stream(self, client: httpx.AsyncClient, request: Request) -> None:
        answer, chunks = Answer(), 0
        async with client.stream("POST", self.url + request.path, json=request.body) as reply:
            if reply.status_code != 200:
                self.tally.fail(request, f"{reply.status_code} {(await reply.aread())[:300]!r}")
                return
            async for line in reply.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                piece = json.loads(line.removeprefix("data: "))
                if "error" in piece:
                    self.tally.fail(request, str(piece["error"])[:300])
                    return
                answer.add(piece)
                chunks += 1
                if request.end == "leave" and chunks >= request.patience:
                    self.tally.abandoned += not answer.reasons
                    break
        self._judge(request, answer, complete=request.end == "stream")

    async def _drop(self, request: Request) -> None:
        """A reset in mid-request."""
        url, body = httpx.URL(self.url + request.path), json.dumps(request.body).encode()
        _, writer = await asyncio.open_connection(url.host, url.port)
        head = f"POST {url.path} HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n"
        writer.write(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        await asyncio.sleep(request.patience)
        writer.transport.abort()
        self.tally.abandoned += 1

    def _judge(self, request: Request, answer: Answer, *, complete: bool) -> None:
        choices = request.body.get("n", 1)
        if complete and len(answer.reasons) != choices:
            self.tally.fail(request, f"{len(answer.reasons)} of {choices} choices ended")
        if request.right is not None:
            for index, reason in answer.reasons.items():
                if reason == "stop" and not request.right(answer.texts[index]):
                    self.tally.fail(request, f"not what was asked for: {answer.texts[index]!r}")
        if request.greedy is not None:
            self._compare(request, answer.tokens, complete=complete)

    def _compare(self, request: Request, tokens: list[int], *, complete: bool) -> None:
        solo = self.solo[request.greedy or 0]
        count = len(tokens)
        if complete and count != len(solo.tokens):
            self.tally.fail(request, f"{count} tokens instead of {len(solo.tokens)}")
            return
        self.tally.compared += 1
        self.tally.compared_tokens += count
        self.tally.gaps += near_tie_gaps([solo.tokens[:count]], [solo.logprobs[:count]], [tokens])


def ask_alone(url: str, jobs: list[GreedyJob]) -> list[Solo]:
    """One request at a time."""
    solos = []
    with httpx.Client(timeout=PATIENCE_S) as client:
        for job in jobs:
            extra = {"logprobs": 5, "return_tokens_as_token_ids": True}
            reply = client.post(f"{url}/completions", json=job.body | extra)
            reply.raise_for_status()
            (choice,) = reply.json()["choices"]
            logprobs = [
                {token.removeprefix("token_id:"): value for token, value in at.items()}
                for at in choice["logprobs"]["top_logprobs"]
            ]
            solos.append(Solo(choice["token_ids"], logprobs))
    return solos
