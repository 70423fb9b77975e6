# SPDX-License-Identifier: Apache-2.0
"""The prompts of a measurement: built in, or from a file."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.printable import printable

BUILT_IN = "built-in"
_FILE = Path(__file__).parent / "builtin_prompts.jsonl"
_SWITCHES = ("enable_thinking", "thinking")  # names that chat templates give it


@dataclass(frozen=True, slots=True)
class PromptSet:
    source: str
    ids: list[list[int]]
    chat_template: bool
    thinking: bool | None  # None: left to the template
    categories: list[str | None] = field(default_factory=list)  # of each prompt


def read_texts(source: str | None, *, count: int | None = None) -> list[str]:
    return [text for text, _ in read_prompts(source, count=count)]


def read_prompts(source: str | None, *, count: int | None = None) -> list[tuple[str, str | None]]:
    """Read the first `count` prompts and their categories, in their order.

    Args:
        source: None for the built-in prompts, or a file: one prompt a line, or JSON lines that hold a
            text or an object with one under `text` or `prompt`, and perhaps its `category`.

    Raises:
        SpeculativeConfigError: no such file, or no prompt in it.
    """
    path = _FILE if source in (None, BUILT_IN) else Path(str(source))
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _no_prompts(source, str(error)) from None
    prompts = [prompt for prompt in map(text_of_line, lines) if prompt[0]]
    if not prompts:
        raise _no_prompts(source, "it has no prompt")
    return prompts[:count]


def token_ids(
    texts: Sequence[str],
    target: str,
    *,
    source: str | None = None,
    chat_template: bool | None = None,
    thinking: bool | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> PromptSet:
    """Return the prompts as the target's tokenizer reads them, each as a user's turn of a chat.

    Args:
        chat_template: None applies one where the tokenizer has one.

    Raises:
        SpeculativeConfigError: the tokenizer cannot be read, or has no template or switch of that kind.
    """
    tokenizer = load_tokenizer(target, revision=revision, trust_remote_code=trust_remote_code)
    if chat_template is None:
        chat_template = getattr(tokenizer, "chat_template", None) is not None
    switches = _switches(tokenizer, chat_template, thinking)
    if not chat_template:
        return PromptSet(source or BUILT_IN, [tokenizer(t)["input_ids"] for t in texts], False, None)
    ids = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}],
            add_generation_prompt=True,
            return_dict=True,
            **switches,
        )["input_ids"]
        for text in texts
    ]
    return PromptSet(source or BUILT_IN, ids, True, thinking)


def tokenizer_keywords(engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an engine's tokenizer follows from, of the keywords of LLM()."""
    revision = engine.get("tokenizer_revision") or engine.get("revision")
    return {"revision": revision, "trust_remote_code": bool(engine.get("trust_remote_code"))}


def load_tokenizer(target: str, *, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """Return the target's tokenizer.

    Raises:
        SpeculativeConfigError: it cannot be read.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            target, revision=revision or "main", trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, ImportError, TypeError, KeyError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise SpeculativeConfigError(
            field="tokenizer of the target", value=target, allowed="a tokenizer next to its config.json",
            remedy=f"add its tokenizer files; bench also takes --dummy and --prompt-tokens ({first})",
        ) from None  # fmt: skip


def random_ids(count: int, length: int, vocabulary: int, seed: int) -> PromptSet:
    """Draw prompts of random token ids, for weights that are random themselves."""
    choose = random.Random(seed)
    ids = [[choose.randrange(vocabulary) for _ in range(length)] for _ in range(count)]
    return PromptSet("random token ids", ids, False, None)


def _switches(tokenizer: Any, chat_template: bool, thinking: bool | None) -> dict[str, bool]:
    template = getattr(tokenizer, "chat_template", None)
    if chat_template and template is None:
        raise SpeculativeConfigError(
            field="--chat-template", value=True, allowed="a tokenizer that has one",
            remedy="use --no-chat-template; the draft's acceptance is then that of plain text",
        )  # fmt: skip
    if thinking is None:
        return {}
    written = json.dumps(template)
    name = next((switch for switch in _SWITCHES if switch in written), None)
    if not chat_template or name is None:
        raise SpeculativeConfigError(
            field="--thinking/--no-thinking", value=thinking,
            allowed=f"a chat template that reads one of {', '.join(_SWITCHES)}",
            remedy="leave it out: this target has no such switch",
        )  # fmt: skip
    return {name: thinking}


def text_of_line(line: str) -> tuple[str, str | None]:
    """Return the text and the category of a JSON line, or the line itself."""
    try:
        found: Any = json.loads(line)
    except ValueError:
        return line, None
    category = None
    if isinstance(found, dict):
        category = found.get("category")
        found = found.get("text") or found.get("prompt")
    if not isinstance(found, str):
        return line, None
    return found, printable(category) if isinstance(category, str) else None


def _no_prompts(source: object, problem: str) -> SpeculativeConfigError:
    return SpeculativeConfigError(
        field="--prompts",
        value=str(source),
        allowed="a text file with one prompt a line, or JSON lines",
        remedy=f'check it ({problem}), or write "{BUILT_IN}" for the prompts of this package',
    )
