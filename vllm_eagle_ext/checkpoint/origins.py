# SPDX-License-Identifier: Apache-2.0
"""Drafts in other places than a folder or the top of a hub repository: what ModelScope's library has
downloaded, OWNER/NAME/FOLDER, which vLLM does not load, and GGUF files, which this package does not
read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from fnmatch import filter as fnmatch_filter
from importlib.metadata import entry_points
from pathlib import Path

from vllm_eagle_ext.errors import GgufDraftError, UnsupportedDraftError

_MODELSCOPE = "VLLM_USE_MODELSCOPE"
MODELSCOPE_PLACES = (
    "a folder with config.json and *.safetensors, or a model that ModelScope's library has downloaded, "
    f"since {_MODELSCOPE} is set"
)


def takes_modelscopes_names() -> bool:
    """Say whether vLLM looks a name up at ModelScope, by vLLM's rule."""
    return os.environ.get(_MODELSCOPE, "").strip().lower() in ("1", "true")


def find_modelscopes_snapshot(model: str, revision: str | None, download_dir: str | None) -> Path:
    """Return the folder of a downloaded model, by the function that vLLM calls; nothing is downloaded.

    Raises:
        LookupError: it is not there; with what to do.
    """
    try:
        from modelscope.hub.snapshot_download import snapshot_download
    except ImportError:
        raise LookupError(
            f"install modelscope, which vLLM needs with {_MODELSCOPE}, or unset the variable"
        ) from None
    try:
        found = snapshot_download(
            model, revision=revision, cache_dir=download_dir, local_files_only=True
        )
    except Exception as error:  # noqa: BLE001 - the library's error differs by release
        said = " ".join(str(error).split())[:400] or type(error).__name__
        raise LookupError(
            "check the name, or run `modelscope download` with it first: this package reads the files "
            f"before an engine loads them (ModelScope's library said: {said})"
        ) from None
    return Path(found)


def split_subfolder(model: str) -> tuple[str, str] | None:
    """Return OWNER/NAME and FOLDER of OWNER/NAME/FOLDER; None for anything else, such as a path."""
    parts = model.split("/")
    plain = len(parts) > 2 and all(parts) and not {".", "..", "~"} & set(parts)
    return ("/".join(parts[:2]), "/".join(parts[2:])) if plain else None


def download_command(model: str, revision: str | None) -> tuple[list[str], str]:
    """Return words that fetch OWNER/NAME/FOLDER, and the folder in which it lies afterwards."""
    found = split_subfolder(model)
    assert found is not None
    repository, subfolder = found
    local = repository.rpartition("/")[2]
    words = ["hf", "download", repository, "--include", f"{subfolder}/*", "--local-dir", local]
    return words + (["--revision", revision] if revision else []), f"{local}/{subfolder}"


_GGUF_PLUGIN = "vllm_gguf_plugin"
_USE_SAFETENSORS = "use the safetensors it was converted from"
_QUANTISED = re.compile(r":[\w+-]+$")  # OWNER/NAME:Q4_K_M or FOLDER:Q4_K_M, names of the plugin's


def gguf_plugin_is_active() -> bool:
    """Say whether vLLM will load its GGUF plugin, by the plugin's entry point; nothing is imported."""
    asked = os.environ.get("VLLM_PLUGINS")
    return any(
        entry.value.startswith(_GGUF_PLUGIN) and (asked is None or entry.name in asked.split(","))
        for entry in entry_points(group="vllm.general_plugins")
    )


def refuse_gguf(model: str, names: Iterable[str], field: str) -> None:
    """Refuse a draft of which one of these names is a GGUF file, or the plugin's word for one.

    Raises:
        GgufDraftError: with who may load it.
    """
    is_active = gguf_plugin_is_active()
    is_plugins = is_active and bool(_QUANTISED.search(model)) and not os.path.isdir(model)
    if not is_plugins and not any(str(name).endswith(".gguf") for name in names):
        return
    nobody = (
        f"vLLM itself loads no draft from GGUF, and vllm-gguf-plugin is not active: {_USE_SAFETENSORS}"
    )
    plugin = f"a start leaves it to vllm-gguf-plugin, unchecked; to have it checked, {_USE_SAFETENSORS}"
    raise GgufDraftError(
        field=field,
        value=model,
        allowed="a draft checkpoint with config.json and safetensors",
        remedy=plugin if is_active else nobody,
    )


_MOST_ENTRIES = 10_000  # of a folder and what lies below it


def refuse_nested(folder: Path, pattern: str) -> None:
    """Refuse a folder with such a file only below it.

    vLLM lists all files below a folder, takes one of that name for weights in Mistral's format, and then
    looks for them in the folder itself.

    Raises:
        UnsupportedDraftError: there is one.
    """
    seen = 0
    for place, folders, names in os.walk(folder):
        seen += len(folders) + len(names)
        if seen > _MOST_ENTRIES:
            return
        if found := fnmatch_filter(names, pattern):
            path = os.path.relpath(os.path.join(place, found[0]), folder)
            raise UnsupportedDraftError(
                field=f"files of the draft {str(folder)!r}",
                value=path,
                allowed="no weights of that name in a folder below: vLLM would load no others, and none "
                "from there",
                remedy=f"name {os.path.dirname(path)!r} of it as the draft, or move that folder away",
            )
