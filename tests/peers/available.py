"""Which peers are installed as pinned, and can be imported."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata

from tools.setup_peers import PEERS

_MODULES = {
    "speculators": "speculators.models.eagle3.core",
    "specforge": "specforge.modeling.auto",
    "dflash": "dflash.model",
}


@functools.cache
def missing(peer: str) -> str | None:
    """Why nothing can be compared with a peer."""
    try:
        version = importlib.metadata.version(peer)
    except importlib.metadata.PackageNotFoundError:
        return f"{peer} {PEERS[peer]} is not installed: the package index lacks it, or it was not asked"
    if version != PEERS[peer]:
        return f"{peer} {version} is installed, and {PEERS[peer]} is the version compared with"
    try:
        if peer == "angelslim":
            from tests.peers.of_angelslim import module

            module("models.draft.llama_eagle3")
            module("trainer.eagle3_trainer")
        else:
            importlib.import_module(_MODULES[peer])
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the reason
        return f"{peer} {version} cannot be imported here ({type(error).__name__}: {error})"
    return None
