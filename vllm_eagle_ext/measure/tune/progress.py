# SPDX-License-Identifier: Apache-2.0
"""Progress of a tune in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vllm_eagle_ext.measure.announce import duration
from vllm_eagle_ext.measure.engine.memory_share import Share
from vllm_eagle_ext.measure.tune.results import ServedConfig, ServedLoad

_STAGES = {"sweep": "each K", "closing": "what may be served"}


class TuneDisplay:
    """One bar per stage. Use as a context manager."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self.progress = Progress(*columns, console=console)
        self._name = ""

    def __enter__(self) -> TuneDisplay:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def stage(self, name: str, cells: int) -> None:
        self._name = _STAGES[name]
        self._task = self.progress.add_task(self._name, total=cells, visible=cells > 0)

    def starting(self, served: ServedConfig) -> None:
        what = "every K" if served.name == "held" else served.shown
        self._describe(f"starting the engine of {what}")

    def cell(self, served: ServedConfig, load: ServedLoad) -> None:
        self._describe(f"{served.shown}, {load.requests} requests, context {load.context}")

    def done(self) -> None:
        self.progress.advance(self._task)

    def memory(self, share: Share) -> None:
        self._say(str(share))

    def left(self, seconds: float) -> None:
        self._say(f"{self._name}: about {duration(seconds)} left.")

    def _describe(self, text: str) -> None:
        self.progress.update(self._task, description=f"{self._name}: {text}")

    def _say(self, text: str) -> None:
        self.progress.console.print(text, markup=False, soft_wrap=True)
