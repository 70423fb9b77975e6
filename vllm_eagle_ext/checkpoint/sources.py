# SPDX-License-Identifier: Apache-2.0
"""Where a checkpoint's bytes come from: a folder, or a repository of the hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from vllm_eagle_ext.errors import UnsupportedDraftError

PLACES = "a folder with config.json and *.safetensors, or a repository of the hub"


class Source(Protocol):
    model: str  # as the user named it

    def files(self) -> dict[str, int]:
        """Names at the top level -> size in bytes."""

    def read(self, name: str, start: int, length: int) -> bytes:
        """At most `length` bytes from `start`."""


class FolderSource:
    def __init__(self, model: str, folder: Path) -> None:
        self.model = model
        self._folder = folder

    @property
    def folder(self) -> Path:
        return self._folder

    def files(self) -> dict[str, int]:
        return {
            entry.name: entry.stat().st_size for entry in self._folder.iterdir() if self._is_own(entry)
        }

    def read(self, name: str, start: int, length: int) -> bytes:
        with (self._folder / name).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def _is_own(self, path: Path) -> bool:
        """Raises:
        UnsupportedDraftError: a link that leads out of the checkpoint.
        """
        if not path.is_file():
            if path.is_symlink() and not path.exists():
                raise self._refuse_link(path, "a file that is there")
            return False
        if path.is_symlink() and not path.resolve().is_relative_to(self._home()):
            raise self._refuse_link(path, "a file inside the checkpoint's folder")
        return True

    def _home(self) -> Path:
        """The hub's cache keeps files in `blobs` beside `snapshots` and links to them."""
        folder = self._folder.resolve()
        is_snapshot = folder.parent.name == "snapshots" and folder.parents[1].name.startswith("models--")
        return folder.parents[1] if is_snapshot else folder

    def _refuse_link(self, path: Path, allowed: str) -> UnsupportedDraftError:
        return UnsupportedDraftError(
            field=f"the link {path.name} of the draft {self.model!r}",
            value=os.readlink(path),
            allowed=allowed,
            remedy="copy the file to where the link is, if you trust it",
        )


class HubSource:
    """Reads byte ranges; nothing is downloaded that is not asked for."""

    def __init__(self, model: str, revision: str | None, token: bool | str | None) -> None:
        from huggingface_hub import HfFileSystem

        self.model = model
        self._files = HfFileSystem(token=token)
        self._root = f"{model}@{revision}" if revision else model

    def files(self) -> dict[str, int]:
        listing: Any = self._files.ls(self._root, detail=True)
        return {
            str(entry["name"]).rpartition("/")[2]: int(entry["size"])
            for entry in listing
            if entry["type"] == "file"
        }

    def read(self, name: str, start: int, length: int) -> bytes:
        with self._files.open(f"{self._root}/{name}", "rb", cache_type="none") as file:
            file.seek(start)
            return bytes(file.read(length))


def open_source(
    model: str, *, revision: str | None, token: bool | str | None, download_dir: str | None
) -> Source:
    """The folder of that name, else the hub, else the hub's cache where the hub cannot be reached.

    Raises:
        UnsupportedDraftError: none of them has it.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return FolderSource(model, folder)
    if folder.is_file():
        raise UnsupportedDraftError(
            field="speculative_config.model", value=model, allowed=PLACES,
            remedy="name the folder, not a file in it",
        )  # fmt: skip
    return _open_hub(model, revision, token, download_dir)


def _open_hub(
    model: str, revision: str | None, token: bool | str | None, download_dir: str | None
) -> Source:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(model)
    except HFValidationError:
        raise _not_found(model, "no such folder, and no name that the hub would take") from None
    problem = "the hub is switched off by HF_HUB_OFFLINE"
    if not constants.HF_HUB_OFFLINE:
        hub = HubSource(model, revision, token)
        try:
            hub.files()
            return hub
        except Exception as error:  # noqa: BLE001 - the hub library's transport differs by release
            problem = f"the hub said: {_first_line(error)}"
    try:
        cached = snapshot_download(
            model, revision=revision, cache_dir=download_dir, local_files_only=True
        )
    except LocalEntryNotFoundError:
        raise _not_found(model, f"no such folder, not in the cache, and {problem}") from None
    return FolderSource(model, Path(cached))


def _not_found(model: str, problem: str) -> UnsupportedDraftError:
    return UnsupportedDraftError(
        field="speculative_config.model",
        value=model,
        allowed=PLACES,
        remedy=f"check the path or name, or download it first ({problem})",
    )


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
