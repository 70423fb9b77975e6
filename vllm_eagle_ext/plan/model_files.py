# SPDX-License-Identifier: Apache-2.0
"""Reads what a plan needs of files, but no weight: configs, sizes of weights, and which attention
layers a draft adds to a target's."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from vllm_eagle_ext.draft.attention import read_heads
from vllm_eagle_ext.draft.draft_config import DraftConfig, flatten, format_of, parse_config
from vllm_eagle_ext.draft.draft_files import (
    INDEX,
    JSON_LIMIT,
    read_draft_files,
    read_header,
    read_json,
    refuse_disguised,
    without_config,
)
from vllm_eagle_ext.draft.findings import Problem
from vllm_eagle_ext.draft.headers import LargeHeaderError
from vllm_eagle_ext.draft.read_spec import family_of, with_own_depth
from vllm_eagle_ext.draft.registry import drafter_of
from vllm_eagle_ext.draft.sources import FolderSource, Place, Source, open_source
from vllm_eagle_ext.draft.target_facts import text_config
from vllm_eagle_ext.errors import EagleExtError, UnsupportedDraftError, UnsupportedTargetError
from vllm_eagle_ext.families.drafter_classes import Drafter
from vllm_eagle_ext.memory.footprint import GIB
from vllm_eagle_ext.memory.geometry import Attention, rope_table, rope_table_bytes
from vllm_eagle_ext.memory.parameter_count import HeadRead, head_read

_MTP = "mtp."  # a head in the target's files that is loaded only to draft with it


@dataclass(frozen=True, slots=True)
class Model:
    name: str  # as the user named it
    config: Mapping[str, Any]
    source: Source
    files: Mapping[str, int]  # name -> bytes


@dataclass(frozen=True, slots=True)
class Weights:
    size: int  # bytes, all ranks together
    origin: str  # for the reader


def open_model(name: str, **place: Unpack[Place]) -> Model:
    """Open a folder, a config.json, or a repository of the hub.

    Raises:
        EagleExtError: there is none, or its config.json cannot be read.
    """
    path = Path(os.path.expanduser(name))
    source: Source
    if os.path.isfile(path):
        source, config_name = FolderSource(str(path.parent), path.parent), path.name
    else:
        source = open_source(name, **place)
        config_name = "config.json"
    files = source.files()
    config = read_json(source, files, config_name)
    if config is None:
        allowed = "a config.json, or a folder or repository with one"
        raise without_config(name, files, place["field"], allowed)
    # A config under another name says nothing about the files next to it.
    return Model(name, config, source, files if config_name == "config.json" else {})


def read_weights(model: Model, given_gib: float | None) -> Weights:
    """Take the size of the weights as given, else by the files.

    Raises:
        UnsupportedTargetError: there are no files, or not all.
    """
    if given_gib is not None:
        return Weights(int(given_gib * GIB), "as given")
    shards, missing = _target_shards(model)
    if missing or not shards:
        raise UnsupportedTargetError(
            field="weights of the target", value=f"without {missing} files" if missing else None,
            allowed="all files, whose sizes are read", remedy="add --weights-gib with their size",
        )  # fmt: skip
    return Weights(sum(_loaded_bytes(model, shard) for shard in shards), "by its files")


def size_of(model: Model, ending: str) -> int:
    sizes = {name: size for name, size in model.files.items() if name.endswith(ending)}
    refuse_disguised(model.source, sizes)
    return sum(sizes.values())


def _target_shards(model: Model) -> tuple[list[str], int]:
    """List the files that vLLM loads, and count those that the index names and that are not here."""
    present = [name for name in model.files if name.endswith(".safetensors")]
    index = None
    if model.files.get(INDEX, JSON_LIMIT + 1) <= JSON_LIMIT:  # that of a large mixture is larger
        index = read_json(model.source, model.files, INDEX)
    named = index.get("weight_map") if index else None
    if not isinstance(named, Mapping) or not named:
        return present, 0
    wanted = {str(name) for name in named.values()}
    return [name for name in present if name in wanted], len(wanted.difference(present))


def _loaded_bytes(model: Model, shard: str) -> int:
    """Return the bytes of a file's tensors without its drafting head; all of a file on the hub."""
    size = model.files[shard]
    if not isinstance(model.source, FolderSource):
        return size
    try:
        header, _ = read_header(model.source, shard, size)
    except LargeHeaderError:  # a shard of a large target
        return size
    return sum(tensor.size for name, tensor in header.items() if not name.startswith(_MTP))


@dataclass(frozen=True, slots=True)
class Draft:
    layers: tuple[Attention, ...]
    size: int  # bytes, all ranks together
    non_causal: bool  # some layer looks at later rows
    tables: int  # bytes of sines and cosines on each rank
    head_read: HeadRead | None  # None: a size of the target is not stated


def read_draft(
    name: str, target: Mapping[str, Any], *, kv_bytes: int, tp: int, **place: Unpack[Place]
) -> Draft:
    """Read which attention layers a draft adds, and the size of its weights.

    Args:
        target: its config.json.

    Raises:
        EagleExtError: it cannot be read, or is not a supported draft.
    """
    place = {"field": "DRAFT", **place}
    # Its config says which layers attend, its files how large it is.
    model = open_model(name, **place)
    flat, drafter, config = _read_config(model, target, place)
    family = family_of(flat, drafter)
    layers = family.read_layers(config, drafter.backbone, format_of(model.config))
    heads = read_heads(config, drafter.backbone)
    size = size_of(model, ".safetensors") or size_of(model, ".bin")
    if not size:
        raise UnsupportedDraftError(
            field="weights of the draft", value=None,
            allowed=".safetensors or .bin files, whose sizes are read",
            remedy="download them, or leave the draft out and lower --gpu-mem by its size",
        )  # fmt: skip
    head = 2 * config.hidden_size * (config.draft_vocab_size or config.vocab_size)
    windows = Counter(layer.window for layer in layers)
    return Draft(
        tuple(
            Attention(
                layers=count, kv_heads=heads.kv, head_dim=heads.dim, window=window,
                element_bytes=kv_bytes, tp=tp,
            )
            for window, count in windows.items()
        ),
        size,
        non_causal=not all(layer.causal for layer in layers),
        tables=0 if rope_table(flat) == rope_table(target) else rope_table_bytes(flat),
        head_read=head_read(head, target, at_once=family.drafts_in_parallel),
    )  # fmt: skip


def _read_config(
    model: Model, target: Mapping[str, Any], place: Place
) -> tuple[Mapping[str, Any], Drafter, DraftConfig]:
    """Return the published config with the draft's own depth, the drafter, and the config as read."""
    flat = flatten(model.config)
    drafter = drafter_of(model.config, flat.get("model_type"))
    depth = text_config(target).get("num_hidden_layers")
    if drafter is not None and type(depth) is int and flat.get("num_hidden_layers") == depth:
        with suppress(EagleExtError):  # `read_draft` says what is wrong with them
            files = read_draft_files(model.name, **place)
            flat = with_own_depth(files, flat, drafter, depth)
    config = parse_config(flat if format_of(model.config) == "published" else model.config)
    if isinstance(config, list):
        raise refusal(config[0])
    if drafter is None or not drafter.backbone.has_kv_heads:
        raise UnsupportedDraftError(
            field="DRAFT", value=model.name,
            allowed="an EAGLE-3 or DFlash draft that keeps keys and values per head",
            remedy="add --by-vllm, or leave the draft out and lower --gpu-mem by its size",
        )  # fmt: skip
    return flat, drafter, config


def refusal(problem: Problem) -> UnsupportedDraftError:
    return UnsupportedDraftError(
        field=problem.field, value=problem.value, allowed=problem.allowed, remedy=problem.remedy
    )
