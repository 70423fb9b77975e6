# SPDX-License-Identifier: Apache-2.0
"""A whole bench or tune: what was asked is resolved, measured and reported."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.measure.bench.advice import bench_advice
from vllm_eagle_ext.measure.bench.engines import swept, variants
from vllm_eagle_ext.measure.bench.notes import premises
from vllm_eagle_ext.measure.bench.progress import ProgressDisplay, announced
from vllm_eagle_ext.measure.bench.request import BenchRequest, Prompts, resolve_bench
from vllm_eagle_ext.measure.bench.results import PLAIN, REPORT, Context, Report, Settings
from vllm_eagle_ext.measure.bench.runner import Runner
from vllm_eagle_ext.measure.bench.summary import summarise
from vllm_eagle_ext.measure.bench.surface import choose_served, surface_of, worth_serving
from vllm_eagle_ext.measure.bench.table import print_report
from vllm_eagle_ext.measure.bench.tune_request import resolve_tune
from vllm_eagle_ext.measure.engine.machine import (
    INSTALL,
    cores,
    gpus,
    load_average,
    processor,
    versions,
)
from vllm_eagle_ext.measure.outputs import require_writable, write_whole
from vllm_eagle_ext.printable import shell_line

_PREFIXES = ("VLLM_", "OMP_", "TRITON_", "CUDA_VISIBLE_DEVICES")
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")


def run_bench(request: BenchRequest, path: Path, arguments: Sequence[str], console: Console) -> int:
    """Measure no draft, stock vLLM and this package in turns, and report it.

    Args:
        path: folder of the report; it has none yet.
        arguments: of the command, without the program; kept with the report.

    Returns:
        The exit status: 1 if the target by itself, or a draft with this package, could not be served.

    Raises:
        EagleExtError: the request cannot be met.
    """
    settings, prompts = resolve_bench(request)
    run = _Run(settings, prompts, path, run_context(arguments), console)
    report = run.measured(lambda runner: runner.run("texts", variants(settings)))
    measured = {row.variant for row in report.of("texts")}
    needed = [variant for variant in variants(settings) if variant.kind != "stock"]
    return int(any(variant not in measured for variant in needed))


def run_tune(request: BenchRequest, path: Path, arguments: Sequence[str], console: Console) -> Report:
    """Measure every K in one engine next to one without a draft, then what may be served.

    Args:
        path: folder of the report; it has none yet.
        arguments: of the command, without the program; kept with the report.

    Raises:
        EagleExtError: the request cannot be met, or an engine failed.
    """
    settings, prompts = resolve_tune(request)
    run = _Run(settings, prompts, path, run_context(arguments), console)

    def stages(runner: Runner) -> None:
        runner.run("sweep", swept(settings))
        _raise_failures(runner)
        surface = surface_of(run.summary(runner))
        if not settings.surface_only and (found := worth_serving(settings, surface)):
            runner.run("closing", [PLAIN, *found])
            _raise_failures(runner)

    return run.measured(stages)


def _raise_failures(runner: Runner) -> None:
    for failure in runner.failures.values():
        raise failure


class _Run:
    """One command: what it measures, and where it writes."""

    def __init__(
        self, settings: Settings, prompts: Prompts, path: Path, context: Context, console: Console
    ) -> None:
        if (path / REPORT).exists():
            raise SpeculativeConfigError(
                field="--out", value=str(path), allowed=f"a folder without a {REPORT}",
                remedy="name another folder, or remove it",
            )  # fmt: skip
        with suppress(OSError):  # what cannot be made cannot be written to
            path.mkdir(parents=True, exist_ok=True)
        require_writable(path / REPORT)
        self.settings, self.prompts, self.path = settings, prompts, path
        self.context, self.console = context, console

    def measured(self, stages: Callable[[Runner], None]) -> Report:
        """Measure, and report what was measured, also where it is interrupted or an engine fails."""
        settings, console = self.settings, self.console
        for line in (*premises(settings, self.context), *announced(settings)):
            console.print(line, markup=False)
        console.print(f"Results and logs go to {self.path}.", markup=False)
        with ProgressDisplay(console) as display:
            runner = Runner(settings, self.prompts, self.path / "logs", display)
            try:
                stages(runner)
            except BaseException:
                with suppress(OSError):  # of a terminal that has been closed
                    display.progress.stop()
                if runner.measurements:
                    publish(self.summary(runner), self.path, console)
                raise
        report = self.summary(runner)
        if settings.command == "tune" and not settings.surface_only:
            report = report.model_copy(update={"choice": choose_served(report)})
        report = report.model_copy(update={"advice": bench_advice(report)})
        publish(report, self.path, console)
        return report

    def summary(self, runner: Runner) -> Report:
        return summarise(self.settings, self.context, runner.engines, runner.measurements)


def publish(report: Report, path: Path, console: Console) -> None:
    """Print tables and what follows, then write report.json and the picture into the folder.

    Each is tried, whatever becomes of the others.
    """
    written = REPORT
    try:
        print_report(report, console)
    finally:
        try:
            write_whole(path / REPORT, json.dumps(report.model_dump(), indent=1))
        except OSError as error:
            written = f"no {REPORT}: it cannot be written ({error.strerror})"
    drawn = f"no picture: matplotlib is missing, {INSTALL}"
    if find_spec("matplotlib") is not None:
        from vllm_eagle_ext.measure.bench.picture import draw

        try:
            picture = draw(report, path)
            drawn = picture.name if picture else "no picture"
        except Exception as error:  # noqa: BLE001 - of a stranger's names, or a broken matplotlib
            drawn = f"no picture: it cannot be drawn ({type(error).__name__}: {error})"
    console.print(f"{path}: {written}, {drawn}", markup=False)


def run_context(arguments: Sequence[str]) -> Context:
    """Describe this machine and its software.

    Args:
        arguments: of the command, without the program.
    """
    set_here = (name for name in sorted(os.environ) if name.startswith(_PREFIXES))
    names = [name for name in set_here if not any(word in name for word in _SECRET)]
    return Context(
        command=shell_line(["vllm-eagle", *arguments]),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
        device=", ".join([f"{processor()}, {cores()} cores", *gpus()]),
        environment={name: os.environ[name] for name in names},
        cores=cores(),
        load_average=load_average(),
    )
