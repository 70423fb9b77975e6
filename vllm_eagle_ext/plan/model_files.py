# SPDX-License-Identifier: Apache-2.0
"""Reads what a plan needs of files, but no weight: configs, sizes of weights, and which attention
layers a draft adds to a target's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_eagle_ext.draft.attention import LayerAttention, asked_window, read_heads, with_window
from vllm_eagle_ext.draft.draft_config import DraftConfig, flatten, format_of, parse_config
from vllm_eagle_ext.draft.draft_files import (
    JSON_LIMIT,
    read_draft_files,
    read_header,
    read_json,
    refuse_disguised,
    without_config,
)
from vllm_eagle_ext.draft.findings import Problem
from vllm_eagle_ext.draft.headers import LargeHeaderError
from vllm_eagle_ext.draft.read_spec import family_of, own_depth, trained_length
from vllm_eagle_ext.draft.registry import drafter_of
from vllm_eagle_ext.draft.rope_config import read_rope
from vllm_eagle_ext.draft.rules.layers import too_narrow, window_problems
from vllm_eagle_ext.draft.sources import FolderSource, Source, open_source
from vllm_eagle_ext.draft.target_facts import text_config
from vllm_eagle_ext.draft.vocabulary import read_vocabulary_file
from vllm_eagle_ext.errors import (
    EagleExtError,
    OptionsError,
    UnsupportedDraftError,
    UnsupportedTargetError,
)
from vllm_eagle_ext.families.drafter_classes import Drafter
from vllm_eagle_ext.memory.geometry import Attention, rope_table, rope_table_bytes
from vllm_eagle_ext.memory.parameter_count import HeadRead, estimate_weights, head_read
from vllm_eagle_ext.plan.request import GIB, PlanRequest

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


_WINDOW, _VOCABULARY = "--draft-window", "--draft-vocabulary"


@dataclass(frozen=True, slots=True)
class Draft:
    layers: tuple[Attention, ...]  # windows are what the cache keeps
    size: int  # bytes, all ranks together
    non_causal: bool = False  # some layer looks at later rows
    window: int | None = None  # the option's, where a layer was published without one
    keeps_all: bool = False  # though it has that window
    tables: int = 0  # bytes of sines and cosines on each rank
    head_read: HeadRead | None = None  # None: a size of the target is not stated


def read_draft(
    request: PlanRequest,
    target: Mapping[str, Any],
    *,
    kv_bytes: int,
    length: int | None,
    k: int,
    keeps_all: bool,
) -> Draft | None:
    """Read which attention layers the draft adds, and the size of its weights; None without a draft.

    Args:
        target: its config.json.
        length: of the longest text.
        k: the largest that is planned.
        keeps_all: a layer that the option gave a window keeps all tokens, in the group of a target whose
            layers all do, as a start has it.

    Raises:
        EagleExtError: it cannot be read, is not a supported draft, or cannot have the window.
    """
    if request.draft is None:
        _require_no_options(request)
        return None
    model = open_model(request.draft, field="DRAFT", download_dir=request.download_dir)
    # Its layers as they are published, and as the option has them.
    drafter, flat, config = _read_config(request, model, target)
    family = family_of(flat, drafter)
    published = family.read_layers(config, drafter.backbone, format_of(model.config))
    window = _window_to_give(request, drafter, flat, config, published, length, k)
    layers = published if window is None or keeps_all else with_window(published, window)
    windows = [None if keeps_all and window is not None else layer.window for layer in layers]
    heads, row = read_heads(config, drafter.backbone), 2 * config.hidden_size
    # What its output head has of rows, and what a step reads of it.
    head, added = _head_rows(request, model, drafter, config)
    return Draft(
        tuple(
            Attention(
                layers=windows.count(kept), kv_heads=heads.kv, head_dim=heads.dim, window=kept,
                element_bytes=kv_bytes, tp=request.tp,
            )
            for kept in dict.fromkeys(windows)
        ),
        (size_of(model, ".safetensors") or size_of(model, ".bin")) + added * row,
        non_causal=not all(layer.causal for layer in layers),
        window=window,
        keeps_all=keeps_all and window is not None,
        tables=0 if rope_table(flat) == rope_table(target) else rope_table_bytes(flat),
        head_read=head_read(row * head, target, at_once=family.drafts_in_parallel),
    )  # fmt: skip


def _require_no_options(request: PlanRequest) -> None:
    """Raise an OptionsError for an option that only a draft follows."""
    for option, value in ((_WINDOW, request.draft_window), (_VOCABULARY, request.draft_vocabulary)):
        if value is not None:
            raise OptionsError(
                field=option, value=value, allowed="only with a draft",
                remedy="name the draft, or leave the option out",
            )  # fmt: skip


def _head_rows(
    request: PlanRequest, model: Model, drafter: Drafter, config: DraftConfig
) -> tuple[int, int]:
    """Return the rows of the head that it drafts with, and how many more that is than its files have."""
    head = config.draft_vocab_size or config.vocab_size
    if request.draft_vocabulary is None:
        return head, 0
    kept = _kept_rows(request.draft_vocabulary, drafter, config, head)
    return kept, kept - (head if _has_own_head(request, model) else 0)


def _kept_rows(file: str, drafter: Drafter, config: DraftConfig, head: int) -> int:
    """Count the rows of the head that stay.

    Raises:
        OptionsError: the file cannot be read, or a start would refuse it for this draft.
    """
    ids = read_vocabulary_file(file, _VOCABULARY)
    if drafter.is_vllms:
        allowed = "no value for a draft that runs in a class of vLLM's"
    elif head < config.vocab_size or len(ids) >= head:
        allowed = f"a part of a whole vocabulary; the draft's head has {head} rows"
    elif ids[-1] >= config.vocab_size:
        allowed = f"ids up to {config.vocab_size - 1}; the last is {ids[-1]}"
    else:
        return len(ids)
    raise OptionsError(
        field=_VOCABULARY,
        value=file,
        allowed=allowed,
        remedy="leave the option out, or write another file",
    )


def _has_own_head(request: PlanRequest, model: Model) -> bool:
    """Tell whether the draft's files have a head; of a config without files none is counted."""
    with suppress(EagleExtError):
        files = read_draft_files(model.name, download_dir=request.download_dir, field="DRAFT")
        return "lm_head.weight" in files.tensors
    return False


def _read_config(
    request: PlanRequest, model: Model, target: Mapping[str, Any]
) -> tuple[Drafter, Mapping[str, Any], DraftConfig]:
    """Return the drafter, and the config as it is stated and as it is read, with the draft's own depth.

    Raises:
        UnsupportedDraftError: it is malformed, or of a draft that is not planned for.
    """
    flat = flatten(model.config)
    drafter = drafter_of(model.config, flat.get("model_type"))
    depth = text_config(target).get("num_hidden_layers")
    if drafter is not None and type(depth) is int and flat.get("num_hidden_layers") == depth:
        with suppress(EagleExtError):  # a plan needs no weights, which are what tells
            files = read_draft_files(model.name, download_dir=request.download_dir, field="DRAFT")
            flat = own_depth(files, flat, drafter, depth)
    config = parse_config(flat if format_of(model.config) == "published" else model.config)
    if isinstance(config, list):
        raise refusal(config[0], config[0].field)
    if drafter is None or not drafter.backbone.has_kv_heads:
        raise UnsupportedDraftError(
            field="DRAFT", value=model.name,
            allowed="an EAGLE-3 or DFlash draft that keeps keys and values per head",
            remedy="add --by-vllm, or leave the draft out and lower --gpu-mem by its size",
        )  # fmt: skip
    return drafter, flat, config


def _window_to_give(
    request: PlanRequest,
    drafter: Drafter,
    flat: Mapping[str, Any],
    config: DraftConfig,
    published: Sequence[LayerAttention],
    length: int | None,
    k: int,
) -> int | None:
    """Find the window that layers get that were published without one; None: no layer gets one.

    Raises:
        UnsupportedDraftError: a start would refuse the window.
    """
    asked = request.draft_window
    if asked is None:
        return None
    window = asked_window(asked, trained_length(flat, config), length)
    if all(layer.window is not None for layer in published):
        window = None
    layers = published if window is None else with_window(published, window)
    for problem in window_problems(asked, window, drafter, layers, read_rope(flat), length):
        raise refusal(problem, _WINDOW)
    for problem in () if window is None else too_narrow(window, k):
        raise refusal(problem, _WINDOW)
    return window


def refusal(problem: Problem, field: str) -> UnsupportedDraftError:
    """Make the error of a problem, under the name that a user has for its field."""
    return UnsupportedDraftError(
        field=field, value=problem.value, allowed=problem.allowed, remedy=problem.remedy
    )
