# SPDX-License-Identifier: Apache-2.0
"""Gated delta net targets with one state block per request: verify, record, commit.

The registration target is this package; the classes load on first use.
"""

from __future__ import annotations

from typing import Any

from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS


def __getattr__(name: str) -> Any:
    if name in REPLAYING_TARGETS:
        from vllm_eagle_ext.replay import targets

        return getattr(targets, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
