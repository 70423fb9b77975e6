# SPDX-License-Identifier: Apache-2.0
"""A whole bench: what was asked is settled, measured into a folder, and reported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from vllm_eagle_ext.measure.announce import busy_warning, duration, fallback_warning
from vllm_eagle_ext.measure.bench.display import ProgressDisplay
from vllm_eagle_ext.measure.bench.estimate import guessed_s
from vllm_eagle_ext.measure.bench.report import write_report
from vllm_eagle_ext.measure.bench.request import BenchRequest, settle
from vllm_eagle_ext.measure.bench.results import Folder, Settings
from vllm_eagle_ext.measure.bench.schedule import Turn, outstanding, variants
from vllm_eagle_ext.measure.bench.turns import run_turns
from vllm_eagle_ext.measure.context import run_context


def run_bench(request: BenchRequest, path: Path, arguments: Sequence[str], console: Console) -> int:
    """Measure what the folder at `path` lacks of the request, and report all that it holds.

    Args:
        arguments: of the command, without the program; kept beside the figures.

    Returns:
        The exit status: 1 if the target alone, or a draft with this package, could not be served.

    Raises:
        EagleExtError: the request cannot be met.
    """
    settings, prompts = settle(request)
    folder = Folder(path)
    folder.begin(settings, run_context(arguments))
    _measure_missing(folder, prompts.ids, console)
    write_report(folder, console)
    measured = {m.variant for m in folder.measurements()}
    needed = [variant for variant in variants(settings) if variant.kind != "stock"]
    return int(any(variant not in measured for variant in needed))


def _measure_missing(folder: Folder, prompts: list[list[int]], console: Console) -> None:
    settings = folder.settings()
    template = "with" if settings.chat_template else "without"
    switch = {None: "", True: ", thinking", False: ", not thinking"}[settings.thinking]
    console.print(
        f"{settings.num_prompts} prompts ({settings.prompts}), {template} chat template{switch}, "
        f"{settings.max_tokens} new tokens, temperature {settings.temperature:g}; "
        f"results in {folder.path}",
        markup=False,
    )
    left = outstanding(settings, folder.engines(), folder.measurements())
    for line in announced(settings, left):
        console.print(line, markup=False)
    with ProgressDisplay(console, len(left)) as display:
        run_turns(folder, settings, prompts, display)


def announced(settings: Settings, left: Sequence[Turn]) -> Iterator[str]:
    """How long it will take, and what would spoil it."""
    if left:
        yield (
            f"Engines to start: {len(left)}. A small model on a CPU takes about "
            f"{duration(guessed_s(settings, left))}; told again after the first. More --repeats, "
            "--num-prompts and --max-tokens take longer and tell more surely."
        )
    yield from busy_warning()
    yield from fallback_warning(settings.engine)
