# SPDX-License-Identifier: Apache-2.0
"""Reads a checkpoint's config.json, safetensors headers and small values; no weight is loaded.

Everything read is bounded, nothing is unpickled, no code of the checkpoint runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import filter as fnmatch_filter
from importlib.metadata import entry_points
from math import prod
from pathlib import Path
from typing import Any, Literal, Unpack

from vllm_eagle_ext.draft.headers import (
    GLANCE,
    HEADER_LIMIT,
    LargeHeaderError,
    TensorHeader,
    disguised,
    header_length,
    held_twice,
    parse_header,
    parse_json,
)
from vllm_eagle_ext.draft.sources import (
    DRAFT_FIELD,
    FolderSource,
    Place,
    Source,
    field_name,
    open_source,
    read_exactly,
)
from vllm_eagle_ext.draft.tensors import COMPUTED, canonical_name, count_non_finite
from vllm_eagle_ext.errors import GgufDraftError, UnsupportedDraftError

JSON_LIMIT = 4 * 2**20  # bytes of config.json or of an index
_VALUE_LIMIT = 2**20  # numbers of a tensor that is read by value
_VALUES_LIMIT = 16 * 2**20  # bytes of all of them; real drafts have up to 4
_CHUNK = 16 * 2**20  # bytes that are read at once; a multiple of every element's size
_CLIP = 300  # characters of a file that go into a message
_WITH_CONFIG = "a folder or repository with a config.json"
_WHOLE = "a complete safetensors file"
INDEX = "model.safetensors.index.json"
# Where there is one, vLLM loads the files of this name, by an index of their own, and no others.
_CONSOLIDATED = "consolidated*.safetensors"
_CONSOLIDATED_INDEX = "consolidated.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class DraftFiles:
    model: str  # as the user named it
    config: Mapping[str, Any]
    weights: Literal["safetensors", "bin"]
    tensors: Mapping[str, TensorHeader]  # by canonical name; empty for .bin files
    values: Mapping[str, bytes] = field(default_factory=dict)  # of small tensors, by canonical name
    folder: Path | None = None  # None: on the hub
    # Infinite values and NaN, by canonical name: of the small tensors, or of all.
    non_finite: Mapping[str, int] = field(default_factory=dict)
    all_are_read: bool = False


def read_draft_files(model: str, *, all_values: bool = False, **place: Unpack[Place]) -> DraftFiles:
    """Read a draft from a folder, or from the hub by byte ranges or through its cache.

    Args:
        all_values: read the values of every tensor.

    Raises:
        UnsupportedDraftError: not to be had, or a file that is missing, damaged or too large.
    """
    # The place, and config.json.
    field = place.get("field", DRAFT_FIELD)
    refuse_gguf(model, [model], field)
    source = open_source(model, **place)
    files = source.files()
    config = read_json(source, files, "config.json")
    if config is None:
        refuse_gguf(model, files, field)
        raise without_config(model, files, field)
    # The weights: pickled ones stay closed, of others the headers tell.
    folder = source.folder if isinstance(source, FolderSource) else None
    shards = _draft_shards(source, files, field)
    if not shards:
        refuse_disguised(source, (name for name in files if name.endswith(".bin")))
        return DraftFiles(model, config, "bin", {}, folder=folder)
    tensors = _read_headers(source, shards)
    values = _read_values(source, tensors)
    non_finite = {name: count_non_finite(raw, tensors[name].dtype) for name, raw in values.items()}
    if all_values:
        non_finite |= _count_in_all(source, tensors)
    return DraftFiles(model, config, "safetensors", tensors, values, folder, non_finite, all_values)


def without_config(
    model: str, files: Mapping[str, int], field: str, allowed: str = _WITH_CONFIG
) -> UnsupportedDraftError:
    """Return the refusal of a place with such files."""
    remedy = "name the one with the model's config.json and weights"
    if "params.json" in files:
        allowed += "; Mistral's own format, with params.json, is left to plain vLLM"
        remedy = 'serve such a draft with "method": "eagle", or name an export with a config.json'
    return UnsupportedDraftError(field=field, value=model, allowed=allowed, remedy=remedy)


def read_config(model: str, **place: Unpack[Place]) -> Any:
    """Read config.json of a model from a folder, the hub or its cache.

    Raises:
        UnsupportedDraftError: there is none, or it is damaged.
    """
    place = {"field": "the target", **place}
    source = open_source(model, **place)
    files = source.files()
    config = read_json(source, files, "config.json")
    if config is None:
        raise without_config(model, files, place["field"])
    return config


def read_json(source: Source, files: Mapping[str, int], name: str) -> dict[str, Any] | None:
    """Read a file's JSON object; return None if there is no such file.

    Raises:
        UnsupportedDraftError: larger than JSON_LIMIT, no object, or beyond the bounds of parse_json.
    """
    if name not in files:
        return None
    problem = f"it has {files[name]} bytes, more than the {JSON_LIMIT} that are read"
    if files[name] <= JSON_LIMIT:
        raw = source.read(name, 0, files[name])
        try:
            keys = parse_json(raw)
        except ValueError as error:
            _refuse_disguised(source, name, raw)
            problem = str(error)
        else:
            if isinstance(keys, dict):
                return keys
            problem = "it holds no object"
    raise _damaged(source, name, "a JSON object", problem)


def _damaged(source: Source, name: str, allowed: str, problem: str) -> UnsupportedDraftError:
    return UnsupportedDraftError(
        field=field_name(source.model, name), value="damaged", allowed=allowed,
        remedy=f"download the file again ({problem[:_CLIP]})",
    )  # fmt: skip


def refuse_disguised(source: Source, names: Iterable[str]) -> None:
    """Refuse what lies in the place of a file of weights.

    Raises:
        UnsupportedDraftError: one of these files is a Git LFS pointer, a page, or JSON.
    """
    if not isinstance(source, FolderSource):  # the hub sends the file that a pointer stands for
        return
    for name in names:
        _refuse_disguised(source, name, source.read(name, 0, GLANCE), weights=True)


def _refuse_disguised(source: Source, name: str, first_bytes: bytes, *, weights: bool = False) -> None:
    if guise := disguised(first_bytes, weights=weights):
        value, remedy = guise
        raise UnsupportedDraftError(
            field=field_name(source.model, name), value=value, allowed="the file itself", remedy=remedy
        )


def _draft_shards(source: Source, files: Mapping[str, int], field: str) -> dict[str, int]:
    """Return what vLLM will load: all *.safetensors, or an index's; nothing where all are .bin."""
    # What vLLM's search finds; it skips names that begin with a dot.
    shards = {
        name: size
        for name, size in sorted(files.items())
        if name.endswith(".safetensors") and not name.startswith(".")
    }
    index_name = INDEX
    if consolidated := fnmatch_filter(shards, _CONSOLIDATED):
        shards, index_name = {name: shards[name] for name in consolidated}, _CONSOLIDATED_INDEX
    # What an index names of that.
    index = read_json(source, files, index_name)
    if index is not None:
        named = index.get("weight_map")
        is_map = isinstance(named, dict) and all(isinstance(name, str) for name in named.values())
        if not named or not is_map:
            raise _damaged(source, index_name, "an index with a weight_map", "weight_map maps no names")
        wanted = sorted(set(named.values()))
        missing = [name for name in wanted if name not in shards]
        if missing:
            names = ", ".join(missing[:5])[:_CLIP]
            others = ", ".join(name for name in shards if name not in wanted)[:_CLIP]
            stale = (
                f"; if {others} holds the whole draft, remove {index_name}, which is of another export"
            )
            why = f"without {names}, which {index_name} names"
            raise _incomplete(source, why, "finish the download" + stale * bool(others))
        return {name: shards[name] for name in wanted}
    # Without one all of it, or only pickled files.
    if shards or any(name.endswith((".bin", ".pt")) and name != "mask_embedding.pt" for name in files):
        return shards
    refuse_gguf(source.model, files, field)
    raise _incomplete(source, "without any *.safetensors")


def _incomplete(
    source: Source,
    value: str,
    remedy: str = "finish the download, or convert the weights to safetensors",
) -> UnsupportedDraftError:
    return UnsupportedDraftError(
        field=f"weights of the draft {source.model!r}", value=value, remedy=remedy,
        allowed="a draft checkpoint with all of its *.safetensors files",
    )  # fmt: skip


def _read_headers(source: Source, shards: Mapping[str, int]) -> dict[str, TensorHeader]:
    tensors: dict[str, TensorHeader] = {}
    room = HEADER_LIMIT
    for shard, size in shards.items():
        try:
            headers, length = read_header(source, shard, size, room)
        except LargeHeaderError as error:
            raise _damaged(source, shard, _WHOLE, str(error)) from None
        room -= length
        for published, header in headers.items():
            name = canonical_name(published)
            if name in tensors:
                raise held_twice(source.model, tensors[name], published, shard)
            tensors[name] = header
    return tensors


def read_header(
    source: Source, shard: str, size: int, room: int = HEADER_LIMIT
) -> tuple[dict[str, TensorHeader], int]:
    """Return the tensors of one file, by published name, and the length of its header in bytes.

    Raises:
        LargeHeaderError: more than HEADER_LIMIT or `room`.
        UnsupportedDraftError: no safetensors file, or a damaged one.
    """
    first_bytes = source.read(shard, 0, GLANCE)
    _refuse_disguised(source, shard, first_bytes, weights=True)
    try:
        length = header_length(first_bytes, size)
        if length > room:
            raise LargeHeaderError(f"up to here the headers have more than {HEADER_LIMIT} bytes")
        return parse_header(source.read(shard, 8, length), file=shard, file_size=size), length
    except (LargeHeaderError, UnsupportedDraftError):  # ValueErrors too
        raise
    except ValueError as error:
        raise _damaged(source, shard, _WHOLE, str(error)) from None


def _read_values(source: Source, tensors: Mapping[str, TensorHeader]) -> dict[str, bytes]:
    """Read d2t and t2d, and other vectors from a folder only, where a read costs no round trip."""
    wanted = [name for name in ("d2t", "t2d") if name in tensors]
    if isinstance(source, FolderSource):
        wanted += [
            name for name, header in tensors.items() if len(header.shape) == 1 and name not in wanted
        ]
    values, room = {}, _VALUES_LIMIT
    for name in wanted:
        header = tensors[name]
        if prod(header.shape) <= _VALUE_LIMIT and header.size <= room:
            values[name] = read_exactly(source, header.file, header.start, header.size)
            room -= header.size
    return values


def _count_in_all(source: Source, tensors: Mapping[str, TensorHeader]) -> dict[str, int]:
    """Count what is not finite in every tensor, a chunk at a time."""
    headers = {name: each for name, each in tensors.items() if not name.endswith(COMPUTED)}
    counts = dict.fromkeys(headers, 0)
    for name, header in headers.items():
        for start in range(0, header.size, _CHUNK):
            size = min(_CHUNK, header.size - start)
            chunk = read_exactly(source, header.file, header.start + start, size)
            counts[name] += count_non_finite(chunk, header.dtype)
    return counts


_GGUF_PLUGIN = "vllm_gguf_plugin"
_USE_SAFETENSORS = "use the safetensors it was converted from"
_QUANTISED = re.compile(r":[\w+-]+$")  # OWNER/NAME:Q4_K_M or FOLDER:Q4_K_M, names of the plugin's


def gguf_plugin_is_active() -> bool:
    """Say whether vLLM will load its GGUF plugin, by the plugin's entry point; nothing is imported."""
    plugins = os.environ.get("VLLM_PLUGINS")
    return any(
        entry.value.startswith(_GGUF_PLUGIN) and (plugins is None or entry.name in plugins.split(","))
        for entry in entry_points(group="vllm.general_plugins")
    )


def refuse_gguf(model: str, names: Iterable[str], field: str) -> None:
    """Refuse a draft of which one of these names is a GGUF file, or the plugin's word for one.

    Raises:
        GgufDraftError: with who may load it.
    """
    has_file = any(str(name).endswith(".gguf") for name in names)
    is_word = bool(_QUANTISED.search(model)) and not os.path.isdir(model)
    if not has_file and not (is_word and gguf_plugin_is_active()):
        return
    nobody = (
        f"vLLM itself loads no draft from GGUF, and vllm-gguf-plugin is not active: {_USE_SAFETENSORS}"
    )
    plugin = f"a start leaves it to vllm-gguf-plugin, unchecked; to have it checked, {_USE_SAFETENSORS}"
    raise GgufDraftError(
        field=field,
        value=model,
        allowed="a draft checkpoint with config.json and safetensors",
        remedy=plugin if gguf_plugin_is_active() else nobody,
    )
