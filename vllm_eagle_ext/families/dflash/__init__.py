# SPDX-License-Identifier: Apache-2.0
"""DFlash drafters. The registration target is this package; the classes load on first use."""

from __future__ import annotations

from typing import Any

__all__ = ["DFlashEagleExtQwen3ForCausalLM"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from vllm_eagle_ext.families.dflash import model

        return getattr(model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
