# SPDX-License-Identifier: Apache-2.0
"""Reads OWNER/NAME/FOLDER: a draft in a folder of a hub repository, which vLLM does not load."""

from __future__ import annotations


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
