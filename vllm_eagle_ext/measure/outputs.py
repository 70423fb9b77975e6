# SPDX-License-Identifier: Apache-2.0
"""Writes the files that a measurement leaves: whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from vllm_eagle_ext.errors import SpeculativeConfigError


def write_whole(path: Path, text: str, *, replaces_links: bool = False) -> None:
    """Write a text under another name, and rename it; a pipe or device is written to as it is.

    Args:
        replaces_links: put the file in a link's place; else what the link names is written to.
    """
    if (path.is_symlink() and not replaces_links) or (path.exists() and not path.is_file()):
        path.write_text(text + "\n")
        return
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("x") as file:  # through no link
            file.write(text + "\n")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def require_writable(path: Path, option: str = "--out") -> None:
    """Refuse a file that cannot be written, before there is anything to write.

    Raises:
        SpeculativeConfigError: it is a folder, or in none that can be written to.
    """
    is_new = not os.path.lexists(path)
    try:
        if not path.is_fifo():  # its reader would take this for the end
            path.open("ab").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise SpeculativeConfigError(
            field=option, value=str(path), remedy="name another one, or create its folder",
            allowed=f"a file that can be written, in a folder that exists ({error.strerror})",
        ) from None  # fmt: skip
