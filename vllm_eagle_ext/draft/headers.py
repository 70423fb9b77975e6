# SPDX-License-Identifier: Apache-2.0
"""The header of a safetensors file: names, shapes, dtypes and where each tensor's bytes lie.

Read apart from the data, which the safetensors library cannot do for a file that is not here, and
within bounds, because a header may claim anything. Format: 8 bytes of length (little endian), that
many bytes of JSON, then the tensors' bytes without gaps.

What a stranger's JSON costs to parse is bounded too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vllm_eagle_ext.errors import UnsupportedDraftError

HEADER_LIMIT = 2**20  # bytes; a draft of eight layers has some 20 kB
GLANCE = 512  # bytes of a file that tell what lies in its place
_SAFETENSORS_LIMIT = 10**8  # bytes of a header that the safetensors library takes
_MAX_RANK = 8  # of a tensor; the product of a longer shape may take minutes
_LENGTH_BYTES = 8
_BLANK = b"\xef\xbb\xbf \t\r\n\f\v"  # white space and the bytes of a byte order mark
_DOWNLOAD = "download the file itself, e.g. with `hf download`"
_CLIP = 80  # characters of a name that go into a message
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64,
}  # fmt: skip


class LargeHeaderError(ValueError):
    """A header that is too long for a draft, of a file that may be whole, such as a target's shard."""


@dataclass(frozen=True, slots=True)
class TensorHeader:
    shape: tuple[int, ...]
    dtype: str  # as safetensors spells it: "BF16", "I64", ..
    published: str = ""  # the name in the file
    file: str = ""
    start: int = 0  # of its bytes, from the beginning of the file
    size: int = 0  # bytes


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    dtype: str
    shape: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=_MAX_RANK)]
    data_offsets: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=2, max_length=2)]


def disguised(first_bytes: bytes, *, weights: bool = False) -> tuple[str, str] | None:
    """Return what lies in a file's place, and what to do; None: nothing known by its beginning.

    Args:
        first_bytes: of the file, GLANCE of them or all.
        weights: the file should hold weights, not JSON.
    """
    beginning = first_bytes[:GLANCE].lstrip(_BLANK).lower()
    if beginning.startswith(b"version http"):  # https://git-lfs.github.com/spec/v1
        return "a Git LFS pointer, not the file itself", "run `git lfs pull` in its folder"
    if beginning.startswith((b"<!doct", b"<html", b"<head")):
        remedy = f"{_DOWNLOAD}: a page comes in its place where a link leads to a login or to a viewer"
        return "an HTML page, not a checkpoint", remedy
    # The length before a safetensors header has zero bytes.
    if weights and beginning.startswith((b"{", b"[")) and b"\0" not in first_bytes[:_LENGTH_BYTES]:
        return "a JSON text, not weights", f"{_DOWNLOAD}: the text may be a server's error message"
    return None


def header_length(first_bytes: bytes, file_size: int) -> int:
    """Return the length of the JSON after the first 8 bytes.

    Raises:
        LargeHeaderError: more than HEADER_LIMIT, which safetensors would read.
        ValueError: fewer than 8 bytes, or a length that safetensors or the file cannot hold.
    """
    if len(first_bytes) < _LENGTH_BYTES:
        raise ValueError("it is shorter than 8 bytes")
    length = int.from_bytes(first_bytes[:_LENGTH_BYTES], "little")
    if length > _SAFETENSORS_LIMIT:
        raise ValueError(f"it is no safetensors file: its header claims {length} bytes")
    if _LENGTH_BYTES + length > file_size:
        raise ValueError(f"its header claims {length} bytes, the file has {file_size}")
    if length > HEADER_LIMIT:
        raise LargeHeaderError(
            f"its header claims {length} bytes, more than the {HEADER_LIMIT} that are read"
        )
    return length


def parse_header(header: bytes, *, file: str, file_size: int) -> dict[str, TensorHeader]:
    """Return the tensors of one file, by published name.

    Raises:
        ValueError: no JSON object of entries, a name that cannot be shown, a byte range that
            overlaps, leaves a gap, ends outside the file, or does not fit shape and dtype.
    """
    entries = _parse_json(header)
    data_start = _LENGTH_BYTES + len(header)
    tensors, end = {}, 0
    # In the order of their bytes, which follow each other without a gap.
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        label = repr(name[:_CLIP])
        if not name.isprintable():  # it goes into messages, and they onto terminals
            raise ValueError(f"{label} is no name of a tensor")
        begin, stop = entry.data_offsets
        if begin != end or stop < begin:
            raise ValueError(f"the bytes {begin} to {stop} of {label} overlap others or leave a gap")
        bits = _BITS.get(entry.dtype)
        if bits is None:
            raise ValueError(
                f"{label} has the dtype {entry.dtype[:_CLIP]!r}, which safetensors does not know"
            )
        if prod(entry.shape) * bits != (stop - begin) * 8:
            raise ValueError(
                f"{label} of shape {entry.shape} and {entry.dtype} has {stop - begin} bytes"
            )
        tensors[name] = TensorHeader(
            tuple(entry.shape), entry.dtype, name, file, data_start + begin, stop - begin
        )
        end = stop
    if data_start + end != file_size:
        raise ValueError(f"it has {file_size} bytes, its header describes {data_start + end}")
    return tensors


def _parse_json(header: bytes) -> Mapping[str, _Entry]:
    try:
        entries: Any = parse_json(header, unique_keys=True)
    except ValueError as error:
        raise ValueError(f"its header cannot be read: {error}") from None
    if not isinstance(entries, dict):
        raise ValueError("its header is no JSON object")
    metadata = entries.pop("__metadata__", None)
    is_map = isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    if metadata is not None and not is_map:
        raise ValueError("its __metadata__ is no map of texts, and safetensors refuses it")
    try:
        return {name: _Entry.model_validate(entry) for name, entry in entries.items()}
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"its header has a malformed entry: {first['msg']}") from None


_CONTAINERS = 2**18  # lists and objects; one takes some 100 bytes where the file spends 2
_DEPTH = 32  # of lists and objects in each other; real files have up to 10
_DIGITS = 20  # of an integer; Python's arithmetic is exact, at any price


def parse_json(raw: bytes, *, containers: int = _CONTAINERS, unique_keys: bool = False) -> Any:
    """Parse bytes whose number the caller has bounded.

    Raises:
        ValueError: not UTF-8, no JSON, or beyond what a real file has.
    """
    if raw.count(b"[") + raw.count(b"{") > containers:
        raise ValueError(f"it has more than {containers} lists and objects")
    try:
        value = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_unique if unique_keys else None, parse_int=_integer
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    # Level by level: a recursion would end as the parser's does.
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_DEPTH + 1):
        children = (node.values() if isinstance(node, dict) else node for node in level)
        level = [child for each in children for child in each if isinstance(child, dict | list)]
    if level:
        raise ValueError("it is nested too deeply")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        raise ValueError("it has the same key twice")
    return unique


def _integer(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError(f"it has an integer of {len(text)} digits")
    return int(text)


def held_twice(model: str, first: TensorHeader, published: str, shard: str) -> UnsupportedDraftError:
    """Return the refusal of a draft of which two files, or one twice, hold a tensor."""
    remedy = "export the draft again, with each tensor once"
    if first.file != shard:
        remedy = f"move {first.file} or {shard} out of the folder: each may be a whole draft"
    return UnsupportedDraftError(
        field=f"weights of the draft {model!r}",
        value=f"{first.published!r} in {first.file} and {published!r} in {shard}, the same tensor",
        allowed="each tensor once: without an index vLLM loads every *.safetensors of the folder",
        remedy=remedy,
    )
