# SPDX-License-Identifier: Apache-2.0
"""What is said before something is measured: how long it takes, and what would spoil it."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_eagle_ext.measure.engine.machine import BUSY, cores, load_average


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds / 10)) * 10} seconds"
    return f"{round(seconds / 60)} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def busy_warning() -> Iterator[str]:
    """Say whether other work runs on this machine."""
    load = load_average()
    if load is not None and load > BUSY * cores():
        yield (
            f"Warning: load average {load:.1f} on {cores()} cores. Other work runs on this machine, and "
            "the times will be its as well."
        )
