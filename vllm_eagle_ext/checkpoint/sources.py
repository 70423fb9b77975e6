# SPDX-License-Identifier: Apache-2.0
"""Where a checkpoint's bytes come from: a folder, or a repository of the hub."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from vllm_eagle_ext.errors import UnsupportedDraftError

_BRIEF = 400  # characters of another library's error
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
        """Regular files, and links that lead to one or nowhere; no pipe, device or folder."""
        found = {}
        with _readable(self.model, "the folder"):
            for entry in self._folder.iterdir():
                if entry.is_file():
                    found[entry.name] = entry.stat().st_size
                elif entry.is_symlink() and not entry.exists():
                    found[entry.name] = 0
        return found

    def read(self, name: str, start: int, length: int) -> bytes:
        path = self._folder / name
        if path.is_symlink():
            self._check_link(path)
        with _readable(self.model, name), path.open("rb") as file:
            file.seek(start)
            return file.read(length)

    def _check_link(self, path: Path) -> None:
        if not path.exists():
            raise self._refuse_link(path, "a file that is there")
        if not path.resolve().is_relative_to(self._home()):
            raise self._refuse_link(path, "a file inside the checkpoint's folder")

    def _home(self) -> Path:
        """The hub's cache keeps files in `blobs` beside `snapshots` and links to them."""
        folder = self._folder.resolve()
        is_snapshot = folder.parent.name == "snapshots" and folder.parents[1].name.startswith("models--")
        return folder.parents[1] if is_snapshot else folder

    def _refuse_link(self, path: Path, allowed: str) -> UnsupportedDraftError:
        return UnsupportedDraftError(
            field=f"the link {field_name(self.model, path.name)}",
            value=os.readlink(path),
            allowed=allowed,
            remedy="copy the file to where the link is, if you trust it",
        )


class HubSource:
    """Reads byte ranges; nothing is downloaded that is not asked for."""

    def __init__(self, model: str, revision: str | None, token: bool | str | None) -> None:
        from huggingface_hub import HfFileSystem

        self.model = model
        self._revision = revision
        self._files = HfFileSystem(token=token)

    def files(self) -> dict[str, int]:
        listing: Any = self._files.ls(self.model, detail=True, revision=self._revision)
        return {
            str(entry["name"]).rpartition("/")[2]: int(entry["size"])
            for entry in listing
            if entry["type"] == "file"
        }

    def read(self, name: str, start: int, length: int) -> bytes:
        path = f"{self.model}/{name}"
        with (
            _readable(self.model, name, Exception),
            self._files.open(path, "rb", revision=self._revision, cache_type="none") as file,
        ):
            file.seek(start)
            return bytes(file.read(length))


def open_source(
    model: str,
    *,
    revision: str | None,
    token: bool | str | None,
    download_dir: str | None,
    field: str = "speculative_config.model",
) -> Source:
    """The folder of that name, else the hub, else the hub's cache where the hub cannot be reached.

    Args:
        field: what an error says was wrong.

    Raises:
        UnsupportedDraftError: none of them has it.
    """
    folder = Path(os.path.expanduser(model))
    if os.path.isdir(folder):  # pathlib's raises for names that are too long
        return FolderSource(model, folder)
    if os.path.isfile(folder):
        raise UnsupportedDraftError(
            field=field, value=model, allowed=PLACES,
            remedy="name the folder, not a file in it",
        )  # fmt: skip
    return _open_hub(model, revision, token, download_dir, field)


def _open_hub(
    model: str, revision: str | None, token: bool | str | None, download_dir: str | None, field: str
) -> Source:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(model)
    except HFValidationError:
        raise _not_found(field, model, "no such folder, and no name that the hub would take") from None
    problem = "the hub is switched off by HF_HUB_OFFLINE"
    if not constants.HF_HUB_OFFLINE:
        hub = HubSource(model, revision, token)
        try:
            hub.files()
            return hub
        except Exception as error:  # noqa: BLE001 - the hub library's transport differs by release
            problem = f"the hub said: {_brief(error)}"
    try:
        cached = snapshot_download(
            model, revision=revision, cache_dir=download_dir, local_files_only=True
        )
    except LocalEntryNotFoundError:
        raise _not_found(field, model, f"no such folder, not in the cache, and {problem}") from None
    return FolderSource(model, Path(cached))


def field_name(model: str, name: str) -> str:
    """A file's name in a message; a stranger may have put an escape sequence into it."""
    return f"{name if name.isprintable() else ascii(name)} of {model!r}"


def _not_found(field: str, model: str, problem: str) -> UnsupportedDraftError:
    return UnsupportedDraftError(
        field=field,
        value=model,
        allowed=PLACES,
        remedy=f"check the path or name, or download it first ({problem})",
    )


@contextmanager
def _readable(model: str, name: str, errors: type[Exception] = OSError) -> Iterator[None]:
    """Raises:
    UnsupportedDraftError: for one of `errors`.
    """
    try:
        yield
    except errors as error:
        raise UnsupportedDraftError(
            field=field_name(model, name),
            value="unreadable",
            allowed="a file that can be read",
            remedy=f"check permissions, access and connection ({_brief(error)})",
        ) from None


def _brief(error: BaseException) -> str:
    """The hub's errors spread over lines, and the first may be the least telling."""
    return " ".join(str(error).split())[:_BRIEF] or type(error).__name__
