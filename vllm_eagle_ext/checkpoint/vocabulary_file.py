# SPDX-License-Identifier: Apache-2.0
"""The file of token ids that the option `draft_vocabulary` names: a JSON list, ascending.

Ascending, so that the first of equal logits has the lowest id, as with the whole head.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

from vllm_eagle_ext.checkpoint.headers import parse_json
from vllm_eagle_ext.errors import OptionsError

OPTION = "additional_config.eagle_ext.draft_vocabulary"
_LIMIT = 2**22  # bytes; the largest published vocabularies have some 260,000 ids of up to 7 bytes


def read_vocabulary_file(path: str, field: str = OPTION) -> tuple[int, ...]:
    """Read the ids; whether they are the target's is for a rule.

    Args:
        field: what an error calls the path.

    Raises:
        OptionsError: no such file, or no ascending list of ids.
    """
    file = Path(os.path.expanduser(path))
    try:
        if not file.is_file():
            raise ValueError("no such file")
        with file.open("rb") as opened:
            # A file of the kernel's, which may wait for ever, has no size.
            raw = opened.read(min(_LIMIT + 1, file.stat().st_size))
        if len(raw) > _LIMIT:
            raise ValueError(f"longer than {_LIMIT} bytes")
        found = parse_json(raw, containers=1)
        return _checked(found)
    except (OSError, ValueError) as error:
        raise OptionsError(
            field=field,
            value=path,
            allowed=f"a file with a JSON list of token ids, ascending and each once ({error})",
            remedy="write it with `vllm-eagle vocabulary`",
        ) from None


def _checked(found: object) -> tuple[int, ...]:
    if not isinstance(found, list) or not found:
        raise ValueError("it holds no list, or an empty one")
    for entry in found:
        if type(entry) is not int or entry < 0:
            raise ValueError(f"{str(entry)[:40]!r} is no token id")
    for before, after in pairwise(found):
        if after <= before:
            raise ValueError(f"{after} comes after {before}")
    return tuple(found)
