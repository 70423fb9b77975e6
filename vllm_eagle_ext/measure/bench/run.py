# SPDX-License-Identifier: Apache-2.0
"""A whole bench: what was asked is resolved, measured and reported."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.measure.bench.printed import advice, premises, print_report
from vllm_eagle_ext.measure.bench.request import Given, resolve
from vllm_eagle_ext.measure.bench.results import PLAIN, REPORT, Context, Report
from vllm_eagle_ext.measure.bench.runner import Runner, swept, variants
from vllm_eagle_ext.measure.bench.summary import choose_served, summarise, surface_of, worth_serving
from vllm_eagle_ext.measure.engine.machine import (
    INSTALL,
    cores,
    gpus,
    processor,
    versions,
)
from vllm_eagle_ext.measure.outputs import require_writable, write_whole
from vllm_eagle_ext.printable import shell_line

_PREFIXES = ("VLLM_", "OMP_", "TRITON_", "CUDA_VISIBLE_DEVICES")
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")


def run_bench(given: Given, path: Path, arguments: Sequence[str], console: Console) -> Report:
    """Measure in turns what was asked for, and report it.

    Args:
        path: folder of the report; it has none yet.
        arguments: of the command, without the program; kept with the report.

    Raises:
        EagleExtError: the request cannot be met, or an engine of --schedule failed.
    """
    settings, prompts = resolve(given)
    require_new(path)
    return measure(Runner(settings, prompts, path / "logs", console), path, run_context(arguments))


def exit_code(report: Report) -> int:
    """Return 1 if the target by itself, or a draft with this package, could not be served.

    With a choice it is the choice's: whether that is slower than no draft.
    """
    if report.choice or report.settings.steps:
        return report.choice.exit_code if report.choice else 0
    measured = {row.variant for row in report.of("texts")}
    needed = [variant for variant in variants(report.settings) if variant.kind != "stock"]
    return int(any(variant not in measured for variant in needed))


def require_new(path: Path) -> None:
    """Refuse a folder that has a report, or cannot have one.

    Raises:
        SpeculativeConfigError: it is such a folder.
    """
    if (path / REPORT).exists():
        raise SpeculativeConfigError(
            field="--result-dir", value=str(path), allowed=f"a folder without a {REPORT}",
            remedy="name another folder, or remove it",
        )  # fmt: skip
    with suppress(OSError):  # what cannot be made cannot be written to
        path.mkdir(parents=True, exist_ok=True)
    require_writable(path / REPORT, "--result-dir")


def measure(runner: Runner, path: Path, context: Context) -> Report:
    """Measure, and report what was measured, also where it is interrupted or an engine fails."""
    settings, console = runner.settings, runner.progress.console
    for line in premises(settings, context):
        console.print(line, markup=False)
    console.print(f"Results and logs go to {path}.", markup=False)
    try:
        with runner:
            _run_stages(runner, context)
    except BaseException:
        if runner.measurements:
            publish(_summary(runner, context), path, console)
        raise
    report = _summary(runner, context)
    if settings.steps and not settings.surface_only:
        report = report.model_copy(update={"choice": choose_served(report)})
    report = report.model_copy(update={"advice": advice(report)})
    publish(report, path, console)
    return report


def _run_stages(runner: Runner, context: Context) -> None:
    """Measure whole texts; or every K in one engine next to no draft, then what may be served."""
    settings = runner.settings
    if not settings.steps:
        runner.run("texts", variants(settings))
        return
    runner.run("sweep", swept(settings))
    surface = surface_of(_summary(runner, context))
    if not settings.surface_only and (served := worth_serving(settings, surface)):
        runner.run("closing", [PLAIN, *served])


def _summary(runner: Runner, context: Context) -> Report:
    return summarise(runner.settings, context, runner.engines, runner.measurements)


def publish(report: Report, path: Path, console: Console) -> None:
    """Print tables and what follows, then write report.json and the pictures into the folder.

    Each is tried, whatever becomes of the others.
    """
    written = [REPORT]
    try:
        print_report(report, console)
    finally:
        try:
            write_whole(path / REPORT, json.dumps(report.model_dump(), indent=1))
        except OSError as error:
            written = [f"no {REPORT}: it cannot be written ({error.strerror})"]
    if find_spec("matplotlib") is None:
        written.append(f"no picture: matplotlib is missing, {INSTALL}")
    else:
        from vllm_eagle_ext.measure.bench import picture

        try:
            written += picture.draw(report, path)
        except Exception as error:  # noqa: BLE001 - of a stranger's names, or a broken matplotlib
            written.append(f"no picture: it cannot be drawn ({type(error).__name__}: {error})")
    console.print(f"{path}: {', '.join(written)}", markup=False)


def run_context(arguments: Sequence[str]) -> Context:
    """Describe the command, this machine and its software."""
    set_here = (name for name in sorted(os.environ) if name.startswith(_PREFIXES))
    names = [name for name in set_here if not any(word in name for word in _SECRET)]
    return Context(
        command=shell_line(["vllm-eagle", *arguments]),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
        device=", ".join([f"{processor()}, {cores()} cores", *gpus()]),
        environment={name: os.environ[name] for name in names},
        cores=cores(),
        load_average=os.getloadavg()[0],
    )
