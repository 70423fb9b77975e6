# SPDX-License-Identifier: Apache-2.0
"""Progress of a bench in a terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vllm_eagle_ext.measure.announce import duration
from vllm_eagle_ext.measure.bench.results import Variant
from vllm_eagle_ext.measure.engine.memory_share import Share


class ProgressDisplay:
    """Two bars: engines, and requests of the one that runs. Use as a context manager."""

    def __init__(self, console: Console, engines: int) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self.progress = Progress(*columns, console=console)
        self.engines = self.progress.add_task("engines", total=engines)
        self.requests = self.progress.add_task("", total=None, visible=False)
        self.started, self.told = 0, False

    def __enter__(self) -> ProgressDisplay:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.progress.update(self.engines, completed=self.started)
        self.progress.stop()

    def engine(self, variant: Variant, repeat: int) -> None:
        self.progress.update(self.engines, completed=self.started)
        self.started += 1
        self._show(f"{variant.name}, repeat {repeat + 1}: starting", None)

    def load(self, variant: Variant, concurrency: int, requests: int) -> Callable[[int], None]:
        self._show(f"{variant.name}, concurrency {concurrency}", requests)
        return lambda ended: self.progress.update(self.requests, completed=ended)

    def failed(self, variant: Variant, error: str) -> None:
        self._say(f"{variant.name}: not served: {error.splitlines()[0]}")

    def memory(self, share: Share) -> None:
        self._say(str(share))

    def left(self, seconds: float) -> None:
        """Say how long the rest takes, once, after the first engines; then the bar tells."""
        if not self.told:
            self._say(f"About {duration(seconds)} left, as long as the first took.")
        self.told = True

    def _say(self, text: str) -> None:
        self.progress.console.print(text, markup=False, soft_wrap=True)

    def _show(self, description: str, total: int | None) -> None:
        self.progress.reset(self.requests, description=description, total=total, visible=True)
