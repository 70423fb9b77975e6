"""The 90 prompts of held_out.jsonl, written by hand, that no row of training has."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_suffix(".jsonl")


@dataclass(frozen=True)
class Prompt:
    text: str  # of its last turn
    category: str
    ids: list[int]


def read(target: str | Path, count: int | None = None) -> list[Prompt]:
    """Return the prompts as the target's chat template renders them, in the order of the file."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)
    prompts = []
    for line in FILE.read_text().splitlines()[:count]:
        chat = json.loads(line)
        text = tokenizer.apply_chat_template(
            chat["messages"], tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        prompts.append(Prompt(chat["messages"][-1]["content"], chat["category"], ids))
    return prompts
