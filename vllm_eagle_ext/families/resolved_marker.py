# SPDX-License-Identifier: Apache-2.0
"""The resolved-config marker, which a start leaves on an hf_config and a model class asks for.

A start resolves configs in the front end, models are built in workers, which under Ray may be on another
node with another installation.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from vllm_eagle_ext.errors import UnsupportedDraftError
from vllm_eagle_ext.version import __version__

_KEY = "eagle_ext"


def write_marker(hf_config: Any, **decisions: Any) -> None:
    """Mark a config as resolved by this version.

    Args:
        decisions: plain JSON, which `require_marker` returns.
    """
    setattr(hf_config, _KEY, {"version": __version__, **decisions})


def require_marker(hf_config: Any, whose: str = "draft") -> Mapping[str, Any]:
    """Return the version and the decisions of a config that this version has resolved.

    Raises:
        UnsupportedDraftError: the config was resolved by no start, or by another version's.
    """
    marker: Mapping[str, Any] = getattr(hf_config, _KEY, None) or {}
    if marker.get("version") == __version__:
        return marker
    raise UnsupportedDraftError(
        field=f"version of vllm-eagle-ext that resolved the {whose}'s config",
        value=marker.get("version"),
        allowed=f"{__version__}, the version installed on {socket.gethostname()}",
        remedy="install the same version on every node, and start the engine through vLLM's "
        "EngineArgs (vllm serve or LLM)",
    )
