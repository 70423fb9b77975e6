# SPDX-License-Identifier: Apache-2.0
"""Sets fields of vLLM's EngineArgs for one start: they may be used again for another engine."""

from __future__ import annotations

from typing import Any

_MARK = "_eagle_ext_set"  # field -> what it was, and what it was set to


def set_for_a_start(engine_args: Any, field: str, value: object) -> None:
    """Set a field, which vLLM reads after it has built the SpeculativeConfig."""
    was = {**getattr(engine_args, _MARK, {}), field: (getattr(engine_args, field), value)}
    setattr(engine_args, _MARK, was)
    setattr(engine_args, field, value)


def take_back(engine_args: Any) -> None:
    """Give each field that an earlier start set what it had, unless it was set anew since."""
    for field, (was, value) in vars(engine_args).pop(_MARK, {}).items():
        if getattr(engine_args, field) == value:
            setattr(engine_args, field, was)
