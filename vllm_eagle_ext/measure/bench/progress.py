# SPDX-License-Identifier: Apache-2.0
"""Prints, before and during a measurement, how far it is and what would spoil it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vllm_eagle_ext.device import lacks_avx512
from vllm_eagle_ext.engine_rules.weights import BF16_FALLBACK
from vllm_eagle_ext.measure.bench.results import Settings, Stage, Variant
from vllm_eagle_ext.measure.engine.machine import BUSY, Share, cores, load_average
from vllm_eagle_ext.preflight.platforms import find_platform
from vllm_eagle_ext.printable import printable

_STAGES = {"texts": "measurements", "sweep": "each K", "closing": "what may be served"}


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
    is_bf16 = engine.get("dtype", "auto") in ("auto", "bfloat16")
    if is_bf16 and find_platform("auto")[0] == "cpu" and lacks_avx512():
        yield f"Warning: {BF16_FALLBACK}."


class ProgressDisplay:
    """One bar per stage. Use as a context manager."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self.progress = Progress(*columns, console=console)
        self._name = ""

    def __enter__(self) -> ProgressDisplay:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def stage(self, stage: Stage, measurements: int) -> None:
        self._name = _STAGES[stage]
        self._task = self.progress.add_task(self._name, total=measurements)

    def show(self, text: str) -> None:
        self.progress.update(self._task, description=printable(f"{self._name}: {text}"))

    def done(self) -> None:
        self.progress.advance(self._task)

    def failed(self, variant: Variant, error: str) -> None:
        self._say(f"{variant.name}: not served: {error.splitlines()[0]}")

    def memory(self, share: Share) -> None:
        self._say(str(share))

    def _say(self, text: str) -> None:
        self.progress.console.print(text, markup=False, soft_wrap=True)


def announced(settings: Settings) -> Iterator[str]:
    """Say what changes the time it takes, and what would spoil it: other work, or a dtype without a
    kernel."""
    yield (
        "Fewer --rounds, --concurrency and --context take less time."
        if settings.command == "tune"
        else "More --repeats, --num-prompts and --max-tokens take longer and give narrower intervals."
    )
    yield from busy_warning()
    yield from fallback_warning(settings.engine)
