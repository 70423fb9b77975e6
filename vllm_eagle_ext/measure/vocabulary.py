# SPDX-License-Identifier: Apache-2.0
"""Chooses the tokens of a draft vocabulary: those that texts have most often.

Source: FR-Spec, arXiv 2502.14856.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from vllm_eagle_ext.draft import Case
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.measure.prompts import read_lines
from vllm_eagle_ext.measure.tokenizer import Tokenizer

SIZES = (8192, 16384, 32768, 65536)
_PIECE = 2**16  # characters of a text that the tokenizer reads at once


def count_tokens(file: Path, tokenizer: Tokenizer) -> Counter[int]:
    """Count the tokens of a file: JSON lines where it is called so, else one plain text.

    Raises:
        SpeculativeConfigError: it cannot be read, or holds no token.
    """
    counted: Counter[int] = Counter()
    try:
        for ids in tokenizer.ids(_pieces(file), special=False):
            counted.update(ids)
    except (OSError, ValueError) as error:
        if isinstance(error, SpeculativeConfigError):
            raise
        raise _no_texts(file, str(error)) from None
    if not counted:
        raise _no_texts(file, "it has no token")
    return counted


def _pieces(file: Path) -> Iterator[str]:
    """Yield the texts of JSON lines, or a plain text cut at ends of lines, in bounded pieces."""
    with file.open("rb") as opened:
        begins = opened.read(4).removeprefix(b"\xef\xbb\xbf")
    if file.suffix.lower() == ".jsonl" or begins.startswith(b"{"):
        for text, _ in read_lines(file):
            yield from (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
        return
    with file.open(encoding="utf-8-sig") as lines:
        while piece := lines.read(_PIECE) + lines.readline(_PIECE):
            yield piece


def _no_texts(file: Path, problem: str) -> SpeculativeConfigError:
    return SpeculativeConfigError(
        field="--texts",
        value=str(file),
        allowed=f"a plain text, or JSON lines in a file called *.jsonl ({problem})",
        remedy="give texts like those that the target will write, a million tokens or more",
    )


def choose(counted: Counter[int], entries: int, size: int, always: Set[int] = frozenset()) -> list[int]:
    """Choose the most frequent ids, ascending; of equally frequent ones the lowest.

    Args:
        size: of the target's vocabulary.
        always: ids that are kept however often they come.
    """
    order = sorted(range(size), key=lambda id_: (id_ not in always, -counted[id_], id_))
    return sorted(order[:entries])


def coverage(counted: Counter[int], ids: list[int], case: Case) -> dict[str, Any]:
    """Compute the share of the counted tokens that a vocabulary of these ids keeps, and the bytes of the
    head that the draft no longer reads, per drafted token or block."""
    spec = case.spec
    row = spec.head_bytes // spec.head_rows
    share = sum(counted[id_] for id_ in ids) / counted.total()
    return {"entries": len(ids), "share": share, "saved": (spec.head_rows - len(ids)) * row}
