# SPDX-License-Identifier: Apache-2.0
"""Compares the vocabularies of draft and target: the tokens of their tokenizers, and the map from a
reduced draft vocabulary into the target's.

`d2t` holds offsets, target id = draft id + d2t[draft id] (SafeAILab/EAGLE); some exporters write the
target ids themselves. Most maps ascend, which tells the two apart; those in order of frequency
(TensorRT-Model-Optimizer) do not. Trainers write it for a whole vocabulary as well, as the identity.

Also reads the file of token ids that the option `draft_vocabulary` names: a JSON list that ascends, so
that the first of equal logits has the lowest id, as with the whole head.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from vllm_eagle_ext.draft.headers import disguised, parse_json
from vllm_eagle_ext.errors import OptionsError

MapKind = Literal["offset", "absolute"]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    size: int  # Vd
    map_kind: MapKind | None  # None: no d2t, one that is no map, or a whole vocabulary

    def __str__(self) -> str:
        spelling = {"offset": "offsets", "absolute": "target ids, converted to offsets"}
        return f"{self.size}" + (f", d2t as {spelling[self.map_kind]}" if self.map_kind else "")


def map_kind(
    d2t: Sequence[int], target_vocab_size: int, kept: Sequence[int] | None = None
) -> MapKind | None:
    """Say which reading of d2t is a map into the target's vocabulary; None: neither.

    Args:
        d2t: Vd integers.
        target_vocab_size: V.
        kept: the target ids that `t2d` marks, ascending; decides where both readings are maps.
    """
    kinds: tuple[MapKind, ...] = ("offset", "absolute")
    maps = [kind for kind in kinds if is_map(target_ids(d2t, kind), target_vocab_size)]
    if kept is not None:
        agreeing = [kind for kind in maps if set(target_ids(d2t, kind)) == set(kept)]
        maps = agreeing or maps
    ascending = [kind for kind in maps if ascends(target_ids(d2t, kind))]
    return next(iter(ascending or maps), None)


def ascends(ids: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(ids))


def target_ids(d2t: Sequence[int], kind: MapKind) -> list[int]:
    if kind == "absolute":
        return list(d2t)
    return [draft_id + offset for draft_id, offset in enumerate(d2t)]


def is_identity(d2t: Sequence[int]) -> bool:
    """Tell whether d2t is the identity: zeros as offsets, or 0, 1, .. as target ids."""
    return not any(d2t) or list(d2t) == list(range(len(d2t)))


def is_map(ids: Sequence[int], target_vocab_size: int) -> bool:
    in_range = bool(ids) and min(ids) >= 0 and max(ids) < target_vocab_size
    return in_range and len(set(ids)) == len(ids)


_FILE = "tokenizer.json"
_CONTAINERS = 2**19  # one per merge, and per token of a unigram model
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError)
_CLIP = 100  # characters of a token that go into a message
_LIMIT = 16 * 2**20  # bytes; larger ones are compared only if they are the same file


def compare_tokenizers(draft: Path | None, target: Path | None) -> str | None:
    """Say how the draft's tokens differ from the target's; None: they do not, or cannot be compared."""
    raw = [_read_tokenizer(folder) for folder in (draft, target)]
    if None in raw:
        return None
    tokens = []
    for text, model in zip(raw, ("the draft's", "the target's"), strict=True):
        if guise := disguised(text or b""):
            return f"one that cannot be read ({model} is {guise[0]}: {guise[1]})"
        if raw[0] == raw[1]:
            return None
        try:
            tokens.append(_tokens(text))
        except _UNREADABLE as error:
            return f"one that cannot be read ({model}: {error})"
    # Tokens that only the draft has, such as a mask, are its own affair.
    mine, theirs = tokens
    differing = sorted(str(token) for token, id_ in mine.items() if theirs.get(token, id_) != id_)
    if not differing:
        return None
    return f"one that differs in {len(differing)} tokens, such as {differing[0][:_CLIP]!r}"


def count_tokens(target: Path | None) -> int | None:
    """Return the ids that a target's tokenizer may give; None: it cannot be read."""
    try:
        ids = list(_tokens(_read_tokenizer(target)).values())
    except _UNREADABLE:
        return None
    return max(ids) + 1 if ids and all(type(id_) is int for id_ in ids) else None


def _read_tokenizer(folder: Path | None) -> bytes | None:
    """Return the file's content; None where there is none, or a larger one than tokenizers have."""
    file = folder and folder / _FILE
    try:
        return file.read_bytes() if file and file.is_file() and file.stat().st_size <= _LIMIT else None
    except OSError:
        return None


def _tokens(raw: bytes | None) -> dict[str, int]:
    """Return token -> id; unigram models list pairs of token and score."""
    tokenizer: Any = parse_json(raw or b"", containers=_CONTAINERS)
    vocabulary = tokenizer["model"]["vocab"]
    if isinstance(vocabulary, list):
        vocabulary = {pair[0]: index for index, pair in enumerate(vocabulary)}
    added = {token["content"]: token["id"] for token in tokenizer.get("added_tokens") or ()}
    return {**vocabulary, **added}


OPTION = "additional_config.eagle_ext.draft_vocabulary"
_FILE_LIMIT = 2**22  # bytes; the largest published vocabularies have some 260,000 ids of up to 7 bytes


def read_vocabulary_file(path: str) -> tuple[int, ...]:
    """Read the ids; whether they are the target's is for a rule.

    Raises:
        OptionsError: no such file, or no ascending list of ids.
    """
    file = Path(os.path.expanduser(path))
    try:
        if not file.is_file():
            raise ValueError("no such file")
        with file.open("rb") as opened:
            # A file of the kernel's, which may wait for ever, has no size.
            raw = opened.read(min(_FILE_LIMIT + 1, file.stat().st_size))
        if len(raw) > _FILE_LIMIT:
            raise ValueError(f"longer than {_FILE_LIMIT} bytes")
        return _checked_ids(parse_json(raw, containers=1))
    except (OSError, ValueError) as error:
        raise OptionsError(
            field=OPTION, value=path, remedy="write it with `vllm-eagle vocabulary`",
            allowed=f"a file with a JSON list of token ids, ascending and each once ({error})",
        ) from None  # fmt: skip


def _checked_ids(ids: object) -> tuple[int, ...]:
    if not isinstance(ids, list) or not ids:
        raise ValueError("it holds no list, or an empty one")
    for entry in ids:
        if type(entry) is not int or entry < 0:
            raise ValueError(f"{str(entry)[:40]!r} is no token id")
    for before, after in pairwise(ids):
        if after <= before:
            raise ValueError(f"{after} comes after {before}")
    return tuple(ids)
