"""What breaks a good draft: where each way is registered, and what several of them do."""

from __future__ import annotations

import json

INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"

REFUSED = {}  # name -> (what breaks a good draft, words of the message)
SERVED = {}  # name -> what a good draft survives


def refused(words):
    def register(break_it):
        assert break_it.__name__ not in REFUSED
        REFUSED[break_it.__name__] = break_it, words
        return break_it

    return register


def served(break_it):
    assert break_it.__name__ not in SERVED
    SERVED[break_it.__name__] = break_it
    return break_it


def write_weights(folder, header, data=b"", *, length=None):
    """`header` as bytes or as the object that they spell; `length` is what the file claims."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    claimed = len(raw) if length is None else length
    (folder / WEIGHTS).write_bytes(claimed.to_bytes(8, "little") + raw + data)


def entry(dtype="U8", shape=(4,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def fill(unit, size):
    return unit * (size // len(unit))


def relink(path, target):
    path.unlink()
    path.symlink_to(target)
