"""What a soak asks: requests of many kinds, drawn at random, the same for a seed."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

End = Literal["whole", "stream", "leave", "cancel", "drop"]

# How a request ends: read whole or as a stream; left after some chunks; cancelled, or its connection
# reset, after a while.
ENDS: dict[End, int] = {"whole": 40, "stream": 35, "leave": 10, "cancel": 8, "drop": 7}
LONGEST, SHORTEST = 700, 4  # tokens of a prompt
DECK = 384
MODEL = "tiny"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "enum": ["read", "write", "append"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "flag": {"type": "boolean"},
    },
    "required": ["name", "count", "flag"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Request:
    kind: str
    end: End
    body: dict[str, Any]
    greedy: int | None = None  # number of the solo answer that this one must equal
    right: Callable[[str], bool] | None = None  # of each choice's text, when the model ended it
    patience: float = 0.0  # seconds, or chunks of a stream, until the client goes away
    path: str = field(default="/completions")


@dataclass(frozen=True)
class GreedyJob:
    prompt: list[int]
    max_tokens: int

    @property
    def body(self) -> dict[str, Any]:
        return completion(self.prompt, self.max_tokens, temperature=0, return_token_ids=True)


def completion(prompt: Sequence[int], max_tokens: int, **extra: Any) -> dict[str, Any]:
    asked = {"model": MODEL, "prompt": list(prompt), "max_tokens": max_tokens, "ignore_eos": True}
    return asked | extra


class Mix:
    """Deals requests from a deck that is shuffled for each round, so that every minute asks much the
    same. Prompts are cut from the held-out excerpts."""

    def __init__(self, excerpts: Sequence[list[int]], seed: int) -> None:
        self.excerpts = excerpts
        self.random = random.Random(seed)
        self.jobs = [self._job(number) for number in range(24)]
        self.deck = [self._draw() for _ in range(DECK)]
        self.left: list[Request] = []

    def deal(self) -> Request:
        if not self.left:
            self.left = self.random.sample(self.deck, DECK)
        return self.left.pop()

    def _draw(self) -> Request:
        choose = self.random
        kinds = [self._greedy] * 9 + [self._sampled] * 6 + [self._many] * 2
        kinds += [self._structured] * 2 + [self._short, self._stopped, self._logprobs, self._chat]
        request = choose.choice(kinds)()
        (end,) = choose.choices(list(ENDS), list(ENDS.values()))
        patience = choose.randint(1, 12) if end == "leave" else choose.uniform(0.01, 3)
        body = dict(request.body, stream=end in ("stream", "leave"))
        return Request(request.kind, end, body, request.greedy, request.right, patience, request.path)

    def _job(self, number: int) -> GreedyJob:
        prompt = self._prompt(long=number % 6 == 0)
        return GreedyJob(prompt, self.random.choice([24, 64, 96, 160]))

    def _prompt(self, *, long: bool | None = None) -> list[int]:
        choose = self.random
        if long if long is not None else choose.random() < 0.2:
            pieces = choose.sample(self.excerpts, 30)
            return [token for piece in pieces for token in piece][: choose.randint(300, LONGEST)]
        excerpt = choose.choice(self.excerpts)
        return excerpt[: choose.randint(SHORTEST, len(excerpt))]

    def _greedy(self) -> Request:
        number = self.random.randrange(len(self.jobs))
        return Request("greedy", "whole", self.jobs[number].body, greedy=number)

    def _sampled(self) -> Request:
        choose = self.random
        how: dict[str, Any] = {"temperature": choose.choice([0.3, 0.7, 1.0, 1.3])}
        # vLLM refuses min_p with drafts; on a CPU it ends at a seed whose prompt comes in chunks (0.32).
        how |= choose.choice(
            [{}, {"top_p": 0.8}, {"top_k": 20}, {"presence_penalty": 0.5, "frequency_penalty": 0.3}]
        )
        return Request("sampled", "whole", completion(self._prompt(), choose.randint(4, 200), **how))

    def _many(self) -> Request:
        return Request("n=2", "whole", completion(self._prompt(long=False), 48, n=2, temperature=0.8))

    def _structured(self) -> Request:
        kind, output, right = self.random.choice(
            [
                ("json", {"json": SCHEMA}, _fits_schema),
                ("regex", {"regex": r"[a-f]{3,12}-[0-9]{2}"}, _fits_pattern),
                ("choice", {"choice": ["left", "right", "straight on"]}, _is_choice),
            ]
        )
        body = completion(
            self._prompt(long=False), 200, temperature=0.7, structured_outputs=output, ignore_eos=False
        )
        return Request(f"structured, {kind}", "whole", body, right=right)

    def _short(self) -> Request:
        body = completion(self._prompt(), self.random.randint(1, 3), temperature=0, ignore_eos=False)
        return Request("max_tokens 1 to 3", "whole", body)

    def _stopped(self) -> Request:
        body = completion(self._prompt(), 128, temperature=0.7, stop=["\n\n", "return"])
        return Request("stop strings", "whole", body)

    def _logprobs(self) -> Request:
        return Request("logprobs", "whole", completion(self._prompt(), 32, temperature=0.7, logprobs=5))

    def _chat(self) -> Request:
        text = self.random.choice(["import os\n", "def read(path):\n", "class A:\n    "])
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 48,
            "temperature": 0.7,
        }
        return Request("chat", "whole", body, path="/chat/completions")


def _fits_schema(text: str) -> bool:
    fields = json.loads(text)
    return set(fields) == set(SCHEMA["properties"]) and fields["name"] in ("read", "write", "append")


def _fits_pattern(text: str) -> bool:
    return re.fullmatch(r"[a-f]{3,12}-[0-9]{2}", text) is not None


def _is_choice(text: str) -> bool:
    return text in ("left", "right", "straight on")
