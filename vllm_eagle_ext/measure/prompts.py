# SPDX-License-Identifier: Apache-2.0
"""The prompts of a measurement: built in, or from a file."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count as numbers
from itertools import islice
from pathlib import Path
from typing import Any

from vllm_eagle_ext.draft.headers import parse_json
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.measure.tokenizer import SWITCHES, Tokenizer
from vllm_eagle_ext.printable import printable

BUILT_IN = "built-in"
_FILE = Path(__file__).parent / "builtin_prompts.jsonl"
_LONGEST = 2**23  # bytes of a line


@dataclass(frozen=True, slots=True)
class PromptSet:
    source: str
    ids: list[list[int]]
    chat_template: bool
    thinking: bool | None  # None: left to the template
    categories: list[str | None] = field(default_factory=list)  # of each prompt


def read_prompts(source: str | None, *, count: int | None = None) -> list[tuple[str, str | None]]:
    """Read the first `count` prompts and their categories, in their order.

    Args:
        source: None for the built-in prompts, or a file as `read_lines` takes it.

    Raises:
        SpeculativeConfigError: no such file, no prompt in it, or a line that is none.
    """
    try:
        lines = read_lines(_FILE if source in (None, BUILT_IN) else Path(str(source)))
        prompts = list(islice(lines, count))
    except (OSError, ValueError) as error:
        raise _no_prompts(source, str(error)) from None
    if not prompts:
        raise _no_prompts(source, "it has no prompt")
    return prompts


def read_lines(file: Path) -> Iterator[tuple[str, str | None]]:
    r"""Yield the text and the category of each line that has some; lines end at \n only.

    Args:
        file: one text a line, or JSON lines that hold a text or an object with one under `text` or
            `prompt`, or in `messages` of one user turn, and perhaps its `category`. In a file called
            *.jsonl each line must be one of these.

    Raises:
        OSError: it cannot be read.
        ValueError: a line is too long or no Unicode, or its JSON has no text.
    """
    with file.open("rb") as opened:
        for number in numbers(1):
            raw = opened.readline(_LONGEST + 1)
            if not raw:
                return
            try:
                if len(raw) > _LONGEST:
                    raise ValueError(f"longer than {_LONGEST} bytes")
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n")
                prompt = _text_of(line.removesuffix("\r"), must_be_json=file.suffix.lower() == ".jsonl")
                prompt[0].encode()
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
            if prompt[0]:
                yield prompt


def _text_of(line: str, *, must_be_json: bool) -> tuple[str, str | None]:
    """Return the text and the category of a JSON line, or the line itself."""
    if not line.strip():
        return "", None
    try:
        value: Any = parse_json(line.encode(), containers=_LONGEST)
    except ValueError:
        if must_be_json:
            raise
        return line, None
    match value:
        case str():
            return value, None
        case dict():
            category = value.get("category")
            return _text_in(value), printable(category) if isinstance(category, str) else None
    is_list_of_objects = isinstance(value, list) and any(isinstance(entry, dict) for entry in value)
    if must_be_json or is_list_of_objects:
        raise ValueError("neither a text nor an object with one")
    return line, None


def _text_in(keys: Mapping[str, Any]) -> str:
    match {key: value for key, value in keys.items() if value is not None}:
        case {"text": str(text)} | {"prompt": str(text)}:
            return text
        case {"messages": [{"role": "user", "content": str(text)}]}:
            return text
    raise ValueError(
        "an object needs a text under 'text' or 'prompt', or 'messages' of one user turn; it has "
        + (", ".join(map(repr, keys)) or "no key")
    )


def token_ids(
    texts: Sequence[str],
    target: str,
    *,
    source: str | None = None,
    chat_template: bool | None = None,
    thinking: bool | None = None,
    categories: Sequence[str | None] = (),
    **keywords: Any,
) -> PromptSet:
    """Return the prompts as the target's tokenizer reads them, each as a user's turn of a chat.

    Args:
        chat_template: None applies one where the tokenizer has one.
        categories: of the texts, which stay with their ids.
        keywords: of `Tokenizer`.

    Raises:
        SpeculativeConfigError: the tokenizer cannot be read, or has no template or switch of that kind.
    """
    with Tokenizer(target, **keywords) as tokenizer:
        if chat_template is None:
            chat_template = tokenizer.has_template
        switches = _switches(tokenizer, chat_template, thinking)
        ids = list(tokenizer.ids(texts, switches=switches))
    thinking = thinking if chat_template else None
    return PromptSet(source or BUILT_IN, ids, chat_template, thinking, list(categories))


def tokenizer_keywords(engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an engine's tokenizer follows from, of the keywords of LLM()."""
    revision = engine.get("tokenizer_revision") or engine.get("revision")
    return {"revision": revision, "trust_remote_code": engine.get("trust_remote_code")}


def random_ids(count: int, length: int, vocabulary: int, seed: int) -> PromptSet:
    """Draw prompts of random token ids, for weights that are random themselves."""
    choose = random.Random(seed)
    ids = [choose.choices(range(vocabulary), k=length) for _ in range(count)]
    return PromptSet("random token ids", ids, False, None)


def _switches(
    tokenizer: Tokenizer, chat_template: bool, thinking: bool | None
) -> dict[str, bool] | None:
    """Return what the chat template is given; None: none is applied."""
    if chat_template and not tokenizer.has_template:
        raise SpeculativeConfigError(
            field="--chat-template", value=True, allowed="a tokenizer that has one",
            remedy="use --no-chat-template; the draft's acceptance is then that of plain text",
        )  # fmt: skip
    if thinking is None:
        return {} if chat_template else None
    if not chat_template or tokenizer.switch is None:
        raise SpeculativeConfigError(
            field="--thinking/--no-thinking", value=thinking,
            allowed=f"a chat template that reads one of {', '.join(SWITCHES)}",
            remedy="leave it out: this target has no such switch",
        )  # fmt: skip
    return {tokenizer.switch: thinking}


def _no_prompts(source: object, problem: str) -> SpeculativeConfigError:
    return SpeculativeConfigError(
        field="--prompts",
        value=str(source),
        allowed="a text file with one prompt a line, or JSON lines",
        remedy=f'check it ({problem}), or write "{BUILT_IN}" for the prompts of this package',
    )
