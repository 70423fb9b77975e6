# SPDX-License-Identifier: Apache-2.0
"""Reads what a plan needs of a model's files: configs and sizes of weights, but no weight."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_eagle_ext.draft.draft_files import (
    JSON_LIMIT,
    read_header,
    read_json,
    refuse_disguised,
    without_config,
)
from vllm_eagle_ext.draft.headers import LargeHeaderError
from vllm_eagle_ext.draft.sources import FolderSource, Source, open_source
from vllm_eagle_ext.errors import UnsupportedTargetError
from vllm_eagle_ext.memory.parameter_count import estimate_weights
from vllm_eagle_ext.plan.request import GIB

_INDEX = "model.safetensors.index.json"
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


def open_model(
    name: str, *, field: str, revision: str | None = None, download_dir: str | None = None
) -> Model:
    """Open a folder, a config.json, or a repository of the hub.

    Raises:
        EagleExtError: there is none, or its config.json cannot be read.
    """
    path = Path(os.path.expanduser(name))
    source: Source
    if os.path.isfile(path):
        source, config_name = FolderSource(str(path.parent), path.parent), path.name
    else:
        source = open_source(name, revision=revision, token=None, download_dir=download_dir, field=field)
        config_name = "config.json"
    files = source.files()
    config = read_json(source, files, config_name)
    if config is None:
        raise without_config(name, files, field, "a config.json, or a folder or repository with one")
    # A config under another name says nothing about the files next to it.
    return Model(name, config, source, files if config_name == "config.json" else {})


def read_weights(model: Model, given_gib: float | None) -> Weights:
    """Take the size of the weights as given, else by the files, else estimated.

    Raises:
        UnsupportedTargetError: no files, and a config that lacks what an estimate needs.
    """
    if given_gib is not None:
        return Weights(int(given_gib * GIB), "as given")
    shards, missing = _target_shards(model)
    if shards and not missing:
        return Weights(sum(_loaded(model, shard) for shard in shards), "by its files")
    try:
        estimate = estimate_weights(model.config)
    except UnsupportedTargetError as error:
        raise UnsupportedTargetError(
            field=error.field, value=error.value, allowed=error.allowed,
            remedy="say --weights-gib, as this config does not tell how large the weights are",
        ) from None  # fmt: skip
    why = f"{missing} of its files are missing" if missing else "no weights at hand"
    return Weights(estimate.size, f"estimated from config.json within {estimate.error:.0%}, {why}")


def size_of(model: Model, ending: str) -> int:
    found = {name: size for name, size in model.files.items() if name.endswith(ending)}
    refuse_disguised(model.source, found)
    return sum(found.values())


def _target_shards(model: Model) -> tuple[list[str], int]:
    """List the files that vLLM loads, and count those that the index names and that are not here."""
    found = [name for name in model.files if name.endswith(".safetensors")]
    index = None
    if model.files.get(_INDEX, JSON_LIMIT + 1) <= JSON_LIMIT:  # that of a large mixture is larger
        index = read_json(model.source, model.files, _INDEX)
    named = index.get("weight_map") if index else None
    if not isinstance(named, Mapping) or not named:
        return found, 0
    wanted = {str(name) for name in named.values()}
    return [name for name in found if name in wanted], len(wanted.difference(found))


def _loaded(model: Model, shard: str) -> int:
    """Return the bytes of a file's tensors without its drafting head; all of a file on the hub."""
    size = model.files[shard]
    if not isinstance(model.source, FolderSource):
        return size
    try:
        header, _ = read_header(model.source, shard, size)
    except LargeHeaderError:  # a shard of a large target
        return size
    return sum(tensor.size for name, tensor in header.items() if not name.startswith(_MTP))
