# SPDX-License-Identifier: Apache-2.0
"""Finds a draft's files and reads config.json and the safetensors headers; no weight is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_eagle_ext.errors import UnsupportedDraftError


@dataclass(frozen=True, slots=True)
class TensorHeader:
    shape: tuple[int, ...]
    dtype: str  # as safetensors spells it: "BF16", "I64", ..


@dataclass(frozen=True, slots=True)
class DraftFiles:
    model: str  # as the user named it
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorHeader]  # by canonical name, see `canonical_name`
    d2t: tuple[int, ...] | None  # by value: draft id -> offset to the target id


def eagle_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The nested block of a published config; empty if there is none.

    Raises:
        UnsupportedDraftError: it is no object.
    """
    nested = config.get("eagle_config")
    if nested is None:
        return {}
    if isinstance(nested, dict):
        return nested
    raise UnsupportedDraftError(
        field="eagle_config of the draft's config.json",
        value=nested,
        allowed="an object",
        remedy="use the config.json that was published with the draft",
    )


def canonical_name(name: str) -> str:
    """Published names differ by prefix only: `model.` and `midlayer.` stand for nothing and layer 0."""
    return name.removeprefix("model.").replace("midlayer.", "layers.0.")


def read_draft_files(
    model: str,
    *,
    revision: str | None = None,
    token: bool | str | None = None,
    download_dir: str | None = None,
) -> DraftFiles:
    """Read a draft from a folder, or from the hub through its cache.

    Raises:
        UnsupportedDraftError: no folder and not to be had from the hub; no config.json; not JSON;
            no safetensors file.
    """
    folder = _locate(model, revision, token, download_dir)
    config = _read_config(model, folder)
    tensors, d2t = _read_headers(model, folder)
    return DraftFiles(model, config, tensors, d2t)


def _locate(
    model: str, revision: str | None, token: bool | str | None, download_dir: str | None
) -> Path:
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        # The weights come along: vLLM loads these same cached files a moment later.
        found = snapshot_download(
            model,
            revision=revision,
            token=token,
            cache_dir=download_dir,
            allow_patterns=["config.json", "*.safetensors", "*.safetensors.index.json"],
        )
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise UnsupportedDraftError(
            field="speculative_config.model",
            value=model,
            allowed="a folder with config.json and *.safetensors, or a repository of the hub",
            remedy=f"check the path or name (the hub said: {str(error).splitlines()[0]})",
        ) from None
    return Path(found)


def _read_config(model: str, folder: Path) -> Mapping[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnsupportedDraftError(
            field="speculative_config.model",
            value=model,
            allowed="a draft checkpoint with a config.json",
            remedy="point it at the folder that holds the draft's config.json and weights",
        ) from None
    except ValueError as error:
        config, problem = None, str(error)
    else:
        problem = "it holds no object"
    if not isinstance(config, dict):
        raise UnsupportedDraftError(
            field="config.json of the draft",
            value=model,
            allowed="a JSON object",
            remedy=f"download the file again ({problem})",
        )
    return config


def _read_headers(model: str, folder: Path) -> tuple[Mapping[str, TensorHeader], tuple[int, ...] | None]:
    from safetensors import SafetensorError, safe_open

    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise UnsupportedDraftError(
            field="speculative_config.model",
            value=model,
            allowed="a draft checkpoint with *.safetensors files",
            remedy="convert the weights to safetensors, finish the download, or leave the draft to "
            'vLLM alone with {"eagle_ext": {"enabled": false}}',
        )
    tensors: dict[str, TensorHeader] = {}
    d2t = None
    for shard in shards:
        try:
            with safe_open(shard, framework="np") as file:
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    piece = file.get_slice(name)
                    tensors[canonical_name(name)] = TensorHeader(
                        tuple(piece.get_shape()), piece.get_dtype()
                    )
                    if name == "d2t":
                        d2t = tuple(file.get_tensor(name).tolist())
        except SafetensorError as error:
            raise UnsupportedDraftError(
                field=f"{shard.name} of the draft",
                value=model,
                allowed="a complete safetensors file",
                remedy=f"download the file again ({error})",
            ) from None
    return tensors, d2t
