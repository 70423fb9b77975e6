# SPDX-License-Identifier: Apache-2.0
"""The mark that the intake leaves on a draft's hf_config and the drafter asks for.

The intake runs in the front end, drafters in workers, which under Ray may be on another node with
another installation.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from vllm_eagle_ext import __version__
from vllm_eagle_ext.errors import UnsupportedDraftError

_KEY = "eagle_ext"


def write_stamp(hf_config: Any, **decisions: Any) -> None:
    """decisions: plain JSON, read back by `require_stamp`."""
    setattr(hf_config, _KEY, {"version": __version__, **decisions})


def require_stamp(hf_config: Any, whose: str = "draft") -> Mapping[str, Any]:
    """Raises:
    UnsupportedDraftError: the config was resolved by no intake, or by another version's.
    """
    stamp: Mapping[str, Any] = getattr(hf_config, _KEY, None) or {}
    if stamp.get("version") == __version__:
        return stamp
    raise UnsupportedDraftError(
        field=f"version of vllm-eagle-ext that resolved the {whose}'s config",
        value=stamp.get("version"),
        allowed=f"{__version__}, the version installed on {socket.gethostname()}",
        remedy="install the same version on every node, and start the engine through vLLM's "
        "EngineArgs (vllm serve or LLM)",
    )
