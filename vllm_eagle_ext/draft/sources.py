# SPDX-License-Identifier: Apache-2.0
"""Where a checkpoint's bytes come from: a folder, a repository of the hub or a folder in one, or what
ModelScope's library has downloaded.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from vllm_eagle_ext.errors import UnsupportedDraftError
from vllm_eagle_ext.printable import printable, shell_line

_BRIEF = 400  # characters of another library's error
PLACES = "a folder with config.json and *.safetensors, or a repository of the hub"
DRAFT_FIELD = "speculative_config.model"  # what an error calls a draft's name, at an engine's start
_MODELSCOPE = "VLLM_USE_MODELSCOPE"
_MODELSCOPE_PLACES = (
    "a folder with config.json and *.safetensors, or a model that ModelScope's library has downloaded, "
    f"since {_MODELSCOPE} is set"
)


class Place(TypedDict, total=False):
    """Says where a name is looked for: keywords of `open_source`, and of what reads by it."""

    revision: str | None
    token: bool | str | None
    download_dir: str | None
    field: str  # what an error says was wrong
    subfolders: bool  # read OWNER/NAME/FOLDER too, which vLLM does not


@dataclass(frozen=True, slots=True)
class FolderSource:
    model: str  # as the user named it
    folder: Path

    def files(self) -> dict[str, int]:
        """Return name -> size in bytes of regular files, and of links that lead to one or nowhere."""
        sizes = {}
        with _readable(self.model, "the folder"):
            for entry in self.folder.iterdir():
                if entry.is_file():
                    sizes[entry.name] = entry.stat().st_size
                elif entry.is_symlink() and not entry.exists():
                    sizes[entry.name] = 0
        return sizes

    def read(self, name: str, start: int, length: int) -> bytes:
        path = self.folder / name
        if path.is_symlink() and not path.exists():
            raise self._refuse_link(path, "a file that is there")
        if path.is_symlink() and not path.resolve().is_relative_to(self._home()):
            raise self._refuse_link(path, "a file inside the checkpoint's folder")
        with _readable(self.model, name), path.open("rb") as file:
            file.seek(start)
            return file.read(length)

    def _home(self) -> Path:
        """Return the folder links may lead into: the hub's cache links from `snapshots` to `blobs`."""
        folder = self.folder.resolve()
        for above in folder.parents:
            if above.name == "snapshots" and above.parent.name.startswith("models--"):
                return above.parent
        return folder

    def _refuse_link(self, path: Path, allowed: str) -> UnsupportedDraftError:
        return UnsupportedDraftError(
            field=f"the link {field_name(self.model, path.name)}", value=os.readlink(path),
            allowed=allowed, remedy="copy the file to where the link is, if you trust it",
        )  # fmt: skip


class HubSource:
    """Reads byte ranges; nothing is downloaded that is not asked for."""

    def __init__(self, model: str, revision: str | None, token: bool | str | None) -> None:
        """Open a repository, OWNER/NAME, or a folder in it, OWNER/NAME/FOLDER."""
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


Source = FolderSource | HubSource


def open_source(
    model: str,
    *,
    revision: str | None = None,
    token: bool | str | None = None,
    download_dir: str | None = None,
    field: str = DRAFT_FIELD,
    subfolders: bool = False,
) -> Source:
    """Open the folder of that name, else the hub, else the hub's cache where the hub is out of reach.

    Where vLLM takes names from ModelScope, its library's cache stands in the hub's place.

    Raises:
        UnsupportedDraftError: none of them has it.
    """
    folder = Path(os.path.expanduser(model))
    # An empty name is no working folder. pathlib's raises for names that are too long.
    if model and os.path.isdir(folder):
        return FolderSource(model, folder)
    if os.path.isfile(folder):
        raise UnsupportedDraftError(
            field=field, value=model, allowed=PLACES,
            remedy="name the folder, not a file in it",
        )  # fmt: skip
    if takes_modelscopes_names():
        try:
            return FolderSource(model, find_modelscopes_snapshot(model, revision, download_dir))
        except LookupError as error:
            raise UnsupportedDraftError(
                field=field, value=model, allowed=_MODELSCOPE_PLACES, remedy=str(error)
            ) from None
    repository = _repository(model, field, subfolders=subfolders)
    return _open_hub(model, repository, revision, token, download_dir, field)


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
        return Path(
            snapshot_download(model, revision=revision, cache_dir=download_dir, local_files_only=True)
        )
    except Exception as error:  # noqa: BLE001 - the library's error differs by release
        raise LookupError(
            "check the name, or run `modelscope download` with it first: this package reads the files "
            f"before an engine loads them (ModelScope's library said: {brief(error)})"
        ) from None


def split_subfolder(model: str) -> tuple[str, str] | None:
    """Return OWNER/NAME and FOLDER of OWNER/NAME/FOLDER; None for anything else, such as a path."""
    parts = model.split("/")
    plain = len(parts) > 2 and all(parts) and not {".", "..", "~"} & set(parts)
    return ("/".join(parts[:2]), "/".join(parts[2:])) if plain else None


def download_command(model: str, revision: str | None) -> tuple[list[str], str]:
    """Return words that fetch OWNER/NAME/FOLDER, and the folder in which it lies afterwards."""
    inside = split_subfolder(model)
    assert inside is not None
    repository, subfolder = inside
    local = repository.rpartition("/")[2]
    words = ["hf", "download", repository, "--include", f"{subfolder}/*", "--local-dir", local]
    return words + (["--revision", revision] if revision else []), f"{local}/{subfolder}"


def _repository(model: str, field: str, *, subfolders: bool) -> str:
    """Return the repository that a name begins with; refuse a folder in one where none is taken."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    inside = split_subfolder(model)
    try:
        validate_repo_id(inside[0] if inside else model)
    except HFValidationError:
        problem = "no such folder, and no name that the hub would take"
        if "@" in model:
            problem += '; a revision is named apart: "revision": ".." next to the model, or --revision'
        raise _not_found(field, model, problem) from None
    if inside is None:
        return model
    if subfolders:
        return inside[0]
    # vLLM takes no folder of a repository; it may be a path with a slip too.
    if os.path.isdir(model.partition("/")[0]):
        raise _not_found(field, model, f"no such folder in {os.getcwd()}")
    words, folder = download_command(model, None)
    raise UnsupportedDraftError(
        field=field, value=model, allowed=f"{PLACES}; vLLM looks into no folder of a repository",
        remedy="no such folder here; if it is a folder in a repository of the hub: "
        f"{shell_line(words)}, and name the folder {folder}",
    )  # fmt: skip


def _open_hub(
    model: str, repository: str, revision: str | None, token: bool | str | None,
    download_dir: str | None, field: str,
) -> Source:  # fmt: skip
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    # The hub itself, where it can be reached.
    problem = "the hub is switched off by HF_HUB_OFFLINE"
    if not constants.HF_HUB_OFFLINE:
        hub = HubSource(model, revision, token)
        try:
            hub.files()
            return hub
        except Exception as error:  # noqa: BLE001 - the hub library's transport differs by release
            problem = f"the hub said: {brief(error)}"
    # Else what its cache has.
    try:
        cached = snapshot_download(
            repository, revision=revision, cache_dir=download_dir, local_files_only=True
        )
    except LocalEntryNotFoundError:
        raise _not_found(field, model, f"no such folder, not in the cache, and {problem}") from None
    except (OSError, ValueError) as error:
        raise _not_found(field, model, f"the hub's cache cannot be read: {brief(error)}") from None
    folder = Path(cached) / model.removeprefix(repository).lstrip("/")
    if not folder.is_dir():
        raise _not_found(field, model, f"the cache has the repository without it, and {problem}")
    return FolderSource(model, folder)


def read_exactly(source: Source, name: str, start: int, length: int) -> bytes:
    """Read bytes that the file had when its size was asked for.

    Raises:
        UnsupportedDraftError: it has become shorter.
    """
    raw = source.read(name, start, length)
    if len(raw) != length:
        raise UnsupportedDraftError(
            field=field_name(source.model, name), value="shorter than before",
            allowed="a file that is not written to", remedy="wait until it is complete",
        )  # fmt: skip
    return raw


def field_name(model: str, name: str) -> str:
    """Return a file's name in a message; a stranger may have put an escape sequence into it."""
    return f"{name if name.isprintable() else ascii(name)} of {model!r}"


def _close_to(model: str) -> str | None:
    """Return the folder whose name is most like that of a missing one, in the same place."""
    parent, name = os.path.split(os.path.expanduser(model).rstrip("/"))
    try:
        folders = [entry.name for entry in os.scandir(parent or ".") if entry.is_dir()]
    except (OSError, ValueError):
        return None
    close = difflib.get_close_matches(name, folders, n=1)
    return os.path.join(parent, close[0]) if close else None


def _not_found(field: str, model: str, problem: str) -> UnsupportedDraftError:
    close = _close_to(model)
    remedy = f"did you mean {close}?" if close else "check the path or name, or download it first"
    return UnsupportedDraftError(
        field=field, value=model, allowed=PLACES, remedy=f"{remedy} ({problem})"
    )


@contextmanager
def _readable(model: str, name: str, errors: type[Exception] = OSError) -> Iterator[None]:
    """Make a refusal of an error while a file is read."""
    try:
        yield
    except errors as error:
        raise UnsupportedDraftError(
            field=field_name(model, name), value="unreadable", allowed="a file that can be read",
            remedy=f"check permissions, access and connection ({brief(error)})",
        ) from None  # fmt: skip


def brief(error: BaseException, most: int = _BRIEF) -> str:
    """Say another library's error on one line: it may spread over some, the first telling the least."""
    return printable(" ".join(str(error).split())[:most]) or type(error).__name__
