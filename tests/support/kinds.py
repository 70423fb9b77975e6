"""Requests of every kind on one engine without drafts and on others with drafts, all of them at once."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tests.support.batches import RECORDED, Batch, Engine, Oracle, run_engines
from tests.support.engine import TINY
from vllm_eagle_ext.measure.reference.published import accepted_length

ABORTED_AFTER = {"1": 2, "4": 3, "6": 5}  # the number of a request and the steps it has
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


class Answer(BaseModel):
    """What fits the schema."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=10)
    count: int = Field(ge=0, le=99)
    parts: list[str] = Field(max_length=3)


def assert_last_fits_schema(result: dict[str, Any]) -> None:
    from transformers import AutoTokenizer

    assert result["finish"][-1] == "stop"
    tokenizer = AutoTokenizer.from_pretrained(TINY / "target")
    Answer.model_validate_json(tokenizer.decode(result["tokens"][-1], skip_special_tokens=True))


# Marks of thinking that the models of examples/tiny hardly write, so that a budget counts from a prompt
# that ends with the first. V1 has faults with others: docs/dev/vllm_faults/v1_thinking_budget.py.
# Nor does V1 clear the row of a budget that ended (v1_budget_of_another.py): each request has one.
THINKING = {"reasoning_start_str": "§", "reasoning_end_str": "~"}
BUDGETS, THINKS = (0, 1, 3), "thinking_token_budget"
UNREACHED = 10_000
DEFAULT_SAMPLING = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}  # as Qwen3's generation_config.json
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
    then: list[int] = field(default_factory=list)  # behind the prompt

    @property
    def name(self) -> str:
        return f"{self.kind} {self.prompt}"


def requests(
    tokens: list[list[int]],
    pieces: list[list[str]],
    kinds: list[str] | None,
    logprobs: int | None,
    think: list[int],
) -> list[Request]:
    """Of greedy texts without drafts, token by token. `think`: the mark where thinking starts."""
    listed = []
    for prompt, text in enumerate(zip(tokens, pieces, strict=True)):
        for kind, params in _kinds(prompt, *text):
            if kinds is None or kind in kinds:
                params = {"max_tokens": MAX_TOKENS, "logprobs": logprobs, THINKS: UNREACHED} | params
                listed.append(Request(kind, prompt, params, think if THINKS in kind else []))
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
    for budget in BUDGETS:
        yield f"{THINKS}={budget}", {THINKS: budget}
    yield "default sampling", {"defaults": True}
    yield "default sampling of one token", {"defaults": True, "top_k": 1}
    yield "sampled", {"temperature": 1.0}
    yield "n=3, sampled", {"n": 3, "temperature": 1.0}
    yield "seed", {"temperature": 1.0, "seed": 7}


REFUSED = {"min_p": {"temperature": 1.0, "min_p": 0.1}, "logit_bias": {"logit_bias": {5: 10.0}}}


def accepted(drafts: Sequence[Sequence[int]], tokens: Sequence[int]) -> list[int]:
    """How many of each draft are in the text. The first draft follows the first token."""
    counts, at = [], 1
    for draft in drafts:
        if at >= len(tokens):
            break
        counts.append(accepted_length(draft, tokens[at:]))
        at += counts[-1] + 1
    return counts


def ends_within_a_draft(drafts: Sequence[Sequence[int]], tokens: Sequence[int]) -> bool:
    """Whether the last token was accepted from a draft, with more of that draft behind it."""
    counts = accepted(drafts, tokens)
    return bool(counts) and 1 + sum(counts) + len(counts) > len(tokens) and counts[-1] < len(drafts[0])


def with_eos(target: Path, token: str, folder: Path) -> Path:
    """The same target, with default sampling and another token as the end of a text."""
    folder.mkdir()
    for file in target.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    config = json.loads((target / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": token}))
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "generation_config.json").write_text(json.dumps(DEFAULT_SAMPLING))
    return folder


def run_kinds(run: KindsRun, runner: str = "v1") -> dict[str, Any]:
    """Results by engine, "plain" of the one without drafts; and "eos", the token that ends a text.

    Of an engine: "answers" by request, "again" of the seeded ones, alone after they were among others,
    what it "refused", and "aborts".

    Raises:
        EngineFailedError: an engine failed, or their process.
    """
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        target = with_eos(run.target, run.eos, Path(folder, "target"))
        arguments = run.engine_args | {
            "structured_outputs_config": COMPACT,
            "reasoning_config": THINKING,
            # No prompt in chunks: a seeded one ends the engine, a budget of 0 ends late behind it.
            "max_num_batched_tokens": 1 << 14,
        }
        greedy = [Batch("greedy", run.prompts, max_tokens=2 * MAX_TOKENS)]
        plain = Engine("plain", greedy, None, arguments, target=target)
        (base,) = run_engines([plain], runner)["plain"].values()
        tokenizer = AutoTokenizer.from_pretrained(target)
        pieces = [[tokenizer.decode([token]) for token in text] for text in base["tokens"]]
        think = tokenizer.encode(THINKING["reasoning_start_str"], add_special_tokens=False)
        asked = requests(base["tokens"], pieces, run.kinds, run.logprobs, think)
        texts = [prompt + own for prompt, own in zip(run.prompts, base["tokens"], strict=True)]
        engines, by_engine = [replace(plain, batches=batches(run, asked))], {"plain": asked}
        for engine in run.engines:
            own = by_engine[engine.name] = [r for r in asked if r.kind in (engine.kinds or (r.kind,))]
            oracle = Oracle(texts, engine.right) if engine.right else None
            drafted = replace(plain, name=engine.name, speculative=engine.speculative, drafts=RECORDED)
            engines.append(replace(drafted, batches=batches(run, own, oracle)))
        raw = run_engines(engines, runner)
    results = {name: observed(raw[name], own) for name, own in by_engine.items()}
    end = tokenizer.encode(THINKING["reasoning_end_str"], add_special_tokens=False)
    return results | {"eos": tokenizer.eos_token_id, "end of thinking": end}


def batches(run: KindsRun, asked: list[Request], oracle: Oracle | None = None) -> list[Batch]:
    def batch(name: str, asked: list[Request], **more: Any) -> Batch:
        prompts = [run.prompts[r.prompt] + r.then for r in asked]
        params = [r.params for r in asked]
        return Batch(name, prompts, asked=params, whole=True, **more)

    return [
        batch("answers", asked, oracle=oracle, refused=REFUSED),
        batch("again", seeded(asked)),
        Batch("aborts", run.prompts, max_tokens=MAX_TOKENS, aborts=ABORTED_AFTER),
    ]


def seeded(asked: list[Request]) -> list[Request]:
    return [r for r in asked if r.kind == "seed"]


def observed(by_batch: dict[str, Any], asked: list[Request]) -> dict[str, Any]:
    def answers(name: str, asked: list[Request]) -> dict[str, Any]:
        result = by_batch[name]
        drafts = result["drafts"] or [[]] * len(asked)
        rows = zip(asked, result["answers"], drafts, strict=True)
        return {r.name: answer | {"drafts": own} for r, answer, own in rows}

    return {
        "answers": answers("answers", asked),
        "again": answers("again", seeded(asked)),
        "refused": by_batch["answers"]["refused"],
        "aborts": by_batch["aborts"],
    }
