# SPDX-License-Identifier: Apache-2.0
"""Finds what ModelScope's library has downloaded, where vLLM takes models from there."""

from __future__ import annotations

import os
from pathlib import Path

_VARIABLE = "VLLM_USE_MODELSCOPE"
PLACES = (
    "a folder with config.json and *.safetensors, or a model that ModelScope's library has downloaded, "
    f"since {_VARIABLE} is set"
)


def takes_names() -> bool:
    """Say whether vLLM looks a name up at ModelScope, by vLLM's rule."""
    return os.environ.get(_VARIABLE, "").strip().lower() in ("1", "true")


def find_snapshot(model: str, revision: str | None, download_dir: str | None) -> Path:
    """Return the folder of a downloaded model, by the function that vLLM calls; nothing is downloaded.

    Raises:
        LookupError: it is not there; with what to do.
    """
    try:
        from modelscope.hub.snapshot_download import snapshot_download
    except ImportError:
        raise LookupError(
            f"install modelscope, which vLLM needs with {_VARIABLE}, or unset the variable"
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
