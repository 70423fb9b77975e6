# SPDX-License-Identifier: Apache-2.0
"""Compares the tokens of two `tokenizer.json`, where both are at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm_eagle_ext.checkpoint.headers import disguised
from vllm_eagle_ext.checkpoint.safe_json import parse_json

_FILE = "tokenizer.json"
_CONTAINERS = 2**19  # one per merge, and per token of a unigram model
_CLIP = 100  # characters of a token that go into a message
_LIMIT = 16 * 2**20  # bytes; larger ones are compared only if they are the same file


def compare_tokenizers(draft: Path | None, target: Path | None) -> str | None:
    """Say how the draft's tokens differ from the target's; None: they do not, or cannot be compared."""
    if draft is None or target is None:
        return None
    files = [folder / _FILE for folder in (draft, target)]
    if not all(file.is_file() and file.stat().st_size <= _LIMIT for file in files):
        return None
    try:
        raw = [file.read_bytes() for file in files]
        for text, model in zip(raw, ("the draft's", "the target's"), strict=True):
            if found := disguised(text):
                return f"one that cannot be read ({model} is {found[0]}: {found[1]})"
        if raw[0] == raw[1]:
            return None
        mine, theirs = (_tokens(parse_json(text, containers=_CONTAINERS)) for text in raw)
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        return f"one that cannot be read ({error})"
    # Tokens that only the draft has, such as a mask, are its own affair.
    differing = sorted(str(token) for token, id_ in mine.items() if theirs.get(token, id_) != id_)
    if not differing:
        return None
    return f"one that differs in {len(differing)} tokens, such as {differing[0][:_CLIP]!r}"


def _tokens(tokenizer: Any) -> dict[str, int]:
    """Return token -> id; unigram models list pairs of token and score."""
    vocabulary = tokenizer["model"]["vocab"]
    if isinstance(vocabulary, list):
        vocabulary = {pair[0]: index for index, pair in enumerate(vocabulary)}
    added = {token["content"]: token["id"] for token in tokenizer.get("added_tokens") or ()}
    return {**vocabulary, **added}
