"""Published drafts as fixtures: config, tensor names and true sizes, and what the preflight must say.

`materialise` writes a draft as published, its weights a sparse file: every byte of a header and of
d2t and t2d is real, the rest are holes, so that tens of gigabytes take a few blocks of disk. In
`known`, S is read in source, R reported, I inferred; a key that `expect` lacks has no answer.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

FIXTURES = Path(__file__).parents[1] / "fixtures" / "checkpoints"

BYTES = {"BOOL": 1, "U8": 1, "F8_E4M3": 1, "BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8}


@dataclass(frozen=True)
class Published:
    slug: str  # the file's name
    checkpoint: str  # owner/name, or where a training template lives
    known: dict[str, Literal["S", "R", "I"]]
    unknown: list[str]
    method: Literal["eagle3", "dflash", "dspark"]
    k: int
    config: dict[str, Any]
    target: dict[str, Any]  # the target's config.json
    d2t: Literal["offset", "absolute", "duplicates"] | None
    tensors: dict[str, tuple[str, list[int]]]  # published name -> dtype, shape; in file order
    expect: dict[str, Any]


def published() -> list[Published]:
    return [
        Published(slug=path.stem, **json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(FIXTURES.glob("*.json"))
    ]


def materialise(checkpoint: Published, folder: Path) -> Path:
    """Write the draft's config.json and model.safetensors into `folder`, and return it."""
    _write_json(folder / "config.json", checkpoint.config)
    header, places, end = {}, {}, 0
    for name, (dtype, shape) in checkpoint.tensors.items():
        begin, end = end, end + math.prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        places[name] = begin
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = 8 + len(text)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, values in _vocabulary_maps(checkpoint).items():
            file.seek(data + places[name])
            file.write(values)
        file.truncate(data + end)
    return folder


def write_target(checkpoint: Published, folder: Path) -> Path:
    """Write the target's config.json into `folder`, and return it."""
    _write_json(folder / "config.json", checkpoint.target)
    return folder


def _vocabulary_maps(checkpoint: Published) -> dict[str, bytes]:
    """The bytes of d2t and t2d: draft id i stands for target id i * (V // Vd)."""
    if checkpoint.d2t is None:
        return {}
    draft_size, size = checkpoint.tensors["d2t"][1][0], checkpoint.tensors["t2d"][1][0]
    kept = [i * (size // draft_size) for i in range(draft_size)]
    mask = bytearray(size)
    for target_id in kept:
        mask[target_id] = 1
    if checkpoint.d2t == "duplicates":
        kept[1] = kept[0]
    values = kept if checkpoint.d2t == "absolute" else [kept[i] - i for i in range(draft_size)]
    return {"d2t": struct.pack(f"<{draft_size}q", *values), "t2d": bytes(mask)}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
