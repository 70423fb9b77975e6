"""Prompts for the demo and the tests: excerpts of held-out library files."""

from __future__ import annotations

import json
import random
from pathlib import Path

from transformers import PreTrainedTokenizerFast

PROMPT_COUNT = 120
MIN_TOKENS, MAX_TOKENS = 48, 160


def excerpt(lines: list[str], start: int, tokenizer: PreTrainedTokenizerFast) -> str | None:
    """Whole lines from `start` on, as many as reach MIN_TOKENS without passing MAX_TOKENS."""
    text = ""
    for line in lines[start:]:
        text += line
        count = len(tokenizer(text)["input_ids"])
        if count > MAX_TOKENS:
            return None
        if count >= MIN_TOKENS:
            return text
    return None


def write_prompts(
    held_out: dict[str, str], tokenizer: PreTrainedTokenizerFast, path: Path, seed: int
) -> None:
    """One JSON object a line, {"file", "text"}, in an order that mixes the files."""
    rng = random.Random(seed)
    files = {name: text.splitlines(keepends=True) for name, text in sorted(held_out.items())}
    prompts: dict[str, dict[str, str]] = {}
    while len(prompts) < PROMPT_COUNT:
        name = rng.choice(list(files))
        text = excerpt(files[name], rng.randrange(len(files[name]) or 1), tokenizer)
        if text and text.strip():
            prompts[text] = {"file": name, "text": text}
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts.values()))
