# SPDX-License-Identifier: Apache-2.0
"""Prints, before and during a measurement, how long it takes and what would spoil it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vllm_eagle_ext.measure.announce import busy_warning, duration, fallback_warning
from vllm_eagle_ext.measure.bench.results import Settings, Stage, Variant
from vllm_eagle_ext.measure.engine.memory_share import Share

_STAGES = {"texts": "measurements", "sweep": "each K", "closing": "what may be served"}


class ProgressDisplay:
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

    def __enter__(self) -> ProgressDisplay:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def stage(self, stage: Stage, measurements: int) -> None:
        self._name = _STAGES[stage]
        self._task = self.progress.add_task(self._name, total=measurements)

    def show(self, text: str) -> None:
        self.progress.update(self._task, description=f"{self._name}: {text}")

    def done(self) -> None:
        self.progress.advance(self._task)

    def failed(self, variant: Variant, error: str) -> None:
        self._say(f"{variant.name}: not served: {error.splitlines()[0]}")

    def memory(self, share: Share) -> None:
        self._say(str(share))

    def left(self, seconds: float) -> None:
        self._say(f"{self._name}: about {duration(seconds)} left.")

    def _say(self, text: str) -> None:
        self.progress.console.print(text, markup=False, soft_wrap=True)


def described(settings: Settings, path: object) -> str:
    """Say what is decoded, and where it is kept."""
    template = "with" if settings.chat_template else "without"
    switch = {None: "", True: ", thinking", False: ", not thinking"}[settings.thinking]
    prompts = f"{settings.num_prompts} prompts ({settings.prompts}), {template} chat template{switch}"
    if settings.command == "tune":
        return f"K of {', '.join(map(str, settings.ks))} and no draft; {prompts}; results in {path}"
    return (
        f"{prompts}, {settings.max_tokens} new tokens, temperature {settings.temperature:g}; "
        f"results in {path}"
    )


def announced(settings: Settings, seconds: float) -> Iterator[str]:
    """Say how long it will take, and what would spoil it: other work, or a dtype without a kernel."""
    narrower = (
        "Fewer --rounds, --concurrency and --context take less."
        if settings.command == "tune"
        else "More --repeats, --num-prompts and --max-tokens take longer and give narrower intervals."
    )
    yield (
        f"A small model on a CPU takes about {duration(seconds)}. Measured times renew the estimate. "
        f"{narrower}"
    )
    yield from busy_warning()
    yield from fallback_warning(settings.engine)
