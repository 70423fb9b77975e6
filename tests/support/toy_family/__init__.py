"""A drafter family of the tests alone: EAGLE-3 whose fused features are normed and scaled.

The registration target is this package; the class loads on first use.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Eagle3EagleExtToyForCausalLM"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from tests.support.toy_family import model

        return getattr(model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
