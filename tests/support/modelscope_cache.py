"""ModelScope's cache of downloaded models, as its library lays it out.

Where the library is not installed, a stand-in has the one function that the package and vLLM call. It
finds a model in the cache, and leaves out everything else: downloads, revisions other than `master`,
and the layout of releases before 1.38.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

MODULES = ("modelscope", "modelscope.hub", "modelscope.hub.snapshot_download")
IS_INSTALLED = importlib.util.find_spec("modelscope") is not None


def provide(monkeypatch) -> None:
    """Put the stand-in where the library would be, unless it is there."""
    if IS_INSTALLED:
        return

    def snapshot_download(model_id, *, revision=None, cache_dir=None, local_files_only=False) -> str:
        assert local_files_only, "nothing may be downloaded"
        path = place(Path(cache_dir), model_id)
        if not path.is_dir():
            raise ValueError(f"Cannot find cached snapshot for model repo {model_id!r}")
        return str(path)

    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[MODULES[-1]].snapshot_download = snapshot_download


def remove(monkeypatch) -> None:
    """Make every import of the library fail."""
    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, None)


def place(cache: Path, model: str) -> Path:
    """Return the folder that the library's 1.40 downloads a model to."""
    return cache / "models" / model.replace("/", "--") / "snapshots" / "master"
