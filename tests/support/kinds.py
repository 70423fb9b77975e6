"""Requests of every kind on one engine without drafts and on others with drafts, all of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.support.engine import IN_PROCESS, engine_environment, run_child

TIMEOUT_S = 1500
MAX_TOKENS = 48
STOPS = range(6, 16)  # where in a text stops are put
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "parts": {"type": "array", "items": {"enum": ["class", "def", "import"]}, "maxItems": 3},
    },
    "required": ["name", "count", "parts"],
    "additionalProperties": False,
}
# Of an engine; or a small model writes spaces for ever.
COMPACT = {"backend": "xgrammar", "disable_any_whitespace": True}


@dataclass(frozen=True)
class DraftedEngine:
    name: str
    speculative: dict[str, Any]
    right: str | None = None  # drafts are an oracle's, made of the plain texts
    kinds: list[str] | None = None  # of the run's


@dataclass(frozen=True)
class KindsRun:
    target: Path
    prompts: list[list[int]]
    engines: list[DraftedEngine]
    eos: str  # the token, as the tokenizer writes it, that ends a text
    kinds: list[str] | None = None
    logprobs: int | None = None  # of every request, to judge near-ties
    engine_args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    kind: str
    prompt: int
    params: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.kind} {self.prompt}"


def requests(
    base: Sequence[Mapping[str, Any]], kinds: list[str] | None, logprobs: int | None
) -> list[Request]:
    """base: per prompt, "tokens" and "pieces" of the greedy text without drafts."""
    listed = []
    for prompt, text in enumerate(base):
        for kind, params in _kinds(prompt, text["tokens"], text["pieces"]):
            if kinds is None or kind in kinds:
                listed.append(
                    Request(kind, prompt, {"max_tokens": MAX_TOKENS, "logprobs": logprobs} | params)
                )
    return listed


def _kinds(prompt: int, tokens: list[int], pieces: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    stop = STOPS[prompt % len(STOPS)]
    yield "greedy", {}
    yield "eos", {"ignore_eos": False}
    for count in (1, 2, 3):
        yield f"max_tokens={count}", {"max_tokens": count}
    yield "stop_token_ids", {"stop_token_ids": [tokens[stop]]}
    yield "min_tokens", {"stop_token_ids": [tokens[stop]], "min_tokens": stop + 9}
    across = pieces[stop][-1:] + pieces[stop + 1][:1]  # ends one token and begins the next
    yield "stop", {"stop": [across]}
    yield "stop, kept", {"stop": [across], "include_stop_str_in_output": True}
    yield "presence_penalty", {"presence_penalty": 1.5}
    yield "frequency_penalty", {"frequency_penalty": 0.8}
    yield "repetition_penalty", {"repetition_penalty": 1.3}
    yield "bad_words", {"bad_words": [pieces[stop]]}
    yield "allowed_token_ids", {"allowed_token_ids": sorted({*tokens[::2], *range(200, 300)})}
    yield "logprobs", {"logprobs": 3}
    yield "prompt_logprobs", {"prompt_logprobs": 2, "max_tokens": 4}
    yield "json", {"json": SCHEMA, "max_tokens": 96, "ignore_eos": False}
    yield "sampled", {"temperature": 1.0}
    yield "n=3, sampled", {"n": 3, "temperature": 1.0}
    yield "seed", {"temperature": 1.0, "seed": 7}


REFUSED = {"min_p": {"temperature": 1.0, "min_p": 0.1}, "logit_bias": {"logit_bias": {5: 10.0}}}


def accepted(drafts: Sequence[Sequence[int]], tokens: Sequence[int]) -> list[int]:
    """How many of each draft are in the text. The first draft follows the first token."""
    found, at = [], 1
    for draft in drafts:
        if at >= len(tokens):
            break
        rows = zip(draft, tokens[at:], strict=False)
        found.append(
            next((i for i, (a, b) in enumerate(rows) if a != b), min(len(draft), len(tokens) - at))
        )
        at += found[-1] + 1
    return found


def ends_within_a_draft(drafts: Sequence[Sequence[int]], tokens: Sequence[int]) -> bool:
    """Whether the last token was accepted from a draft, with more of that draft behind it."""
    counts = accepted(drafts, tokens)
    return bool(counts) and 1 + sum(counts) + len(counts) > len(tokens) and counts[-1] < len(drafts[0])


def run_kinds(run: KindsRun, runner: str = "v1") -> dict[str, Any]:
    """ "plain", "eos" and each engine's name: what `kinds_process` says of it.

    Raises:
        EngineFailedError: the process ended without results.
    """
    environment = engine_environment(runner) | IN_PROCESS
    results, _ = run_child("kinds_process", asdict(run), environment=environment, timeout_s=TIMEOUT_S)
    return results
