# SPDX-License-Identifier: Apache-2.0
"""Announces a measurement before it starts: how long it takes, and what would spoil it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_eagle_ext.measure.engine.machine import BUSY, cores, load_average
from vllm_eagle_ext.preflight.cpu_kernels import BF16_FALLBACK
from vllm_eagle_ext.preflight.offline.platform import find_cpu_kernels, find_platform


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
            "makes the times longer."
        )


def fallback_warning(engine: Mapping[str, Any]) -> Iterator[str]:
    """Say whether the engines would compute in a dtype for which this CPU has no kernel.

    Args:
        engine: keywords of LLM().
    """
    kernels = find_cpu_kernels(find_platform("auto"))
    if kernels and not kernels.bf16 and engine.get("dtype", "auto") in ("auto", "bfloat16"):
        yield f"Warning: {BF16_FALLBACK}"
