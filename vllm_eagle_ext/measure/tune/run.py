# SPDX-License-Identifier: Apache-2.0
"""A whole tune: every K in one engine beside one without a draft, then what may be served."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from vllm_eagle_ext.measure.announce import busy_warning, duration
from vllm_eagle_ext.measure.context import run_context
from vllm_eagle_ext.measure.engine.memory_share import with_memory
from vllm_eagle_ext.measure.tune.choice import candidates
from vllm_eagle_ext.measure.tune.display import TuneDisplay
from vllm_eagle_ext.measure.tune.engines import Engines
from vllm_eagle_ext.measure.tune.report import TuneReport, report_of, write_report
from vllm_eagle_ext.measure.tune.request import Prompts, TuneRequest, settle
from vllm_eagle_ext.measure.tune.results import NONE, Served, TuneFolder, TuneSettings
from vllm_eagle_ext.measure.tune.schedule import (
    engines_to_start,
    guessed_s,
    outstanding,
    start_s,
    swept,
)
from vllm_eagle_ext.measure.tune.surface import surface_of
from vllm_eagle_ext.measure.tune.turns import Measuring


def run_tune(request: TuneRequest, path: Path, arguments: Sequence[str], console: Console) -> TuneReport:
    """Measure what the folder at `path` lacks of the request, and report all that it holds.

    Args:
        arguments: of the command, without the program; kept beside the figures.

    Raises:
        EagleExtError: the request cannot be met, or an engine failed.
    """
    settings, prompts = settle(request)
    folder = TuneFolder(path)
    folder.begin(settings, run_context(arguments))
    for line in announced(settings, folder):
        console.print(line, markup=False)
    _measure(folder, settings, prompts, console)
    report = report_of(folder)
    write_report(report, folder, console)
    return report


def _measure(folder: TuneFolder, settings: TuneSettings, prompts: Prompts, console: Console) -> None:
    beside = 2 + (not settings.surface_only) + settings.auto if settings.together else 1
    if not _is_missing(settings, folder):
        return
    engine, share = with_memory(settings.engine, [settings.target, settings.draft], engines=beside)
    with TuneDisplay(console) as display:
        if share is not None:
            display.memory(share)
        with Engines(settings, folder.path / "logs", engine, display.starting) as engines:
            measuring = Measuring(folder, settings, prompts, engines, display)
            measuring.run("sweep", swept(settings))
            if closing := closing_of(settings, folder):
                measuring.run("closing", closing)


def closing_of(settings: TuneSettings, folder: TuneFolder) -> list[Served]:
    """What the closing round compares, from a whole sweep; nothing where no K pays anywhere."""
    if settings.surface_only:
        return []
    found = candidates(settings, surface_of(folder.cells("sweep")))
    return [NONE, *found] if found else []


def _is_missing(settings: TuneSettings, folder: TuneFolder) -> bool:
    if outstanding(settings, swept(settings), folder.cells("sweep")):
        return True
    closing = closing_of(settings, folder)
    return bool(outstanding(settings, closing, folder.cells("closing")))


def announced(settings: TuneSettings, folder: TuneFolder) -> Iterator[str]:
    """How much is measured, how long it will take, and what would spoil it."""
    lengths = ", ".join(map(str, settings.lengths))
    template = "with" if settings.chat_template else "without"
    prompts = f"{settings.num_prompts} prompts ({settings.prompts}), {template} chat template"
    yield f"K of {lengths} and no draft; {prompts}; results in {folder.path}"
    if seconds := _guessed_s(settings, folder):
        yield (
            f"A small model on a CPU takes about {duration(seconds)}; told again from its own times. "
            "Fewer --rounds, --concurrency and --context take less."
        )
    yield from busy_warning()


def _guessed_s(settings: TuneSettings, folder: TuneFolder) -> float:
    """Seconds of both stages; what the closing round compares is known when the sweep has ended."""
    seconds, sweep = 0.0, outstanding(settings, swept(settings), folder.cells("sweep"))
    closing = closing_of(settings, folder) if not sweep else []
    if sweep:
        seconds += guessed_s(settings, sweep) + engines_to_start(settings, "sweep") * start_s(settings)
        if not settings.surface_only:
            closing = [NONE, Served(name="fixed", k=settings.k), Served(name="schedule")]
            closing += [Served(name="auto")] * settings.auto
    if left := outstanding(settings, closing, folder.cells("closing")):
        seconds += guessed_s(settings, left) + engines_to_start(settings, "closing") * start_s(settings)
    return seconds
