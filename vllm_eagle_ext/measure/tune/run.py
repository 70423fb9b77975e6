# SPDX-License-Identifier: Apache-2.0
"""A whole tune: every K in one engine beside one without a draft, then what may be served."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from vllm_eagle_ext.measure.announce import busy_warning, duration, fallback_warning
from vllm_eagle_ext.measure.context import run_context
from vllm_eagle_ext.measure.engine.memory_share import with_memory
from vllm_eagle_ext.measure.tune.choice import worth_serving
from vllm_eagle_ext.measure.tune.engines import Engines
from vllm_eagle_ext.measure.tune.measuring import Measuring
from vllm_eagle_ext.measure.tune.order import (
    engines_to_start,
    missing_turns,
    start_s,
    swept,
    turns_s,
)
from vllm_eagle_ext.measure.tune.progress import TuneDisplay
from vllm_eagle_ext.measure.tune.publish import publish
from vllm_eagle_ext.measure.tune.report import TuneReport, report_of
from vllm_eagle_ext.measure.tune.request import Prompts, TuneRequest, settle_tune
from vllm_eagle_ext.measure.tune.results import NONE, ServedConfig, TuneFolder, TuneSettings
from vllm_eagle_ext.measure.tune.surface import surface_of


def run_tune(request: TuneRequest, path: Path, arguments: Sequence[str], console: Console) -> TuneReport:
    """Measure what the folder at `path` lacks of the request, and report all that it holds.

    Args:
        arguments: of the command, without the program; kept beside the figures.

    Raises:
        EagleExtError: the request cannot be met, or an engine failed.
    """
    settings, prompts = settle_tune(request)
    folder = TuneFolder(path)
    folder.begin(settings, run_context(arguments))
    for line in forecast(settings, folder):
        console.print(line, markup=False)
    _measure_stages(folder, settings, prompts, console)
    report = report_of(folder)
    publish(report, folder, console)
    return report


def _measure_stages(
    folder: TuneFolder, settings: TuneSettings, prompts: Prompts, console: Console
) -> None:
    served_later = 0 if settings.surface_only else 1 + len(settings.chosen_while_serving)
    beside = 2 + served_later if settings.together else 1
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


def closing_of(settings: TuneSettings, folder: TuneFolder) -> list[ServedConfig]:
    """What the closing round compares, from a whole sweep; nothing where no K pays anywhere."""
    if settings.surface_only:
        return []
    found = worth_serving(settings, surface_of(folder.cells("sweep")))
    return [NONE, *found] if found else []


def _is_missing(settings: TuneSettings, folder: TuneFolder) -> bool:
    if missing_turns(settings, swept(settings), folder.cells("sweep")):
        return True
    closing = closing_of(settings, folder)
    return bool(missing_turns(settings, closing, folder.cells("closing")))


def forecast(settings: TuneSettings, folder: TuneFolder) -> Iterator[str]:
    """How much is measured, how long it will take, and what would spoil it."""
    lengths = ", ".join(map(str, settings.lengths))
    template = "with" if settings.chat_template else "without"
    prompts = f"{settings.num_prompts} prompts ({settings.prompts}), {template} chat template"
    yield f"K of {lengths} and no draft; {prompts}; results in {folder.path}"
    if seconds := _stages_s(settings, folder):
        yield (
            f"A small model on a CPU takes about {duration(seconds)}; told again from its own times. "
            "Fewer --rounds, --concurrency and --context take less."
        )
    yield from busy_warning()
    yield from fallback_warning(settings.engine)


def _stages_s(settings: TuneSettings, folder: TuneFolder) -> float:
    """Seconds of both stages; what the closing round compares is known when the sweep has ended."""
    seconds, sweep = 0.0, missing_turns(settings, swept(settings), folder.cells("sweep"))
    closing = closing_of(settings, folder) if not sweep else []
    if sweep:
        seconds += turns_s(settings, sweep) + engines_to_start(settings, "sweep") * start_s(settings)
        if not settings.surface_only:
            closing = [NONE, ServedConfig(name="fixed", k=settings.k), ServedConfig(name="schedule")]
            closing += settings.chosen_while_serving
    if left := missing_turns(settings, closing, folder.cells("closing")):
        seconds += turns_s(settings, left) + engines_to_start(settings, "closing") * start_s(settings)
    return seconds
