# SPDX-License-Identifier: Apache-2.0
"""How a verification looks on a terminal: while it runs, and at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from vllm_eagle_ext.measure.verify.verdicts import Verdict, VerifyReport
from vllm_eagle_ext.printable import printable

_STYLES = {
    Verdict.PASSED: "green",
    Verdict.FAILED: "bold red",
    Verdict.WARNING: "yellow",
    Verdict.NOT_APPLICABLE: "dim",
}


class Stages:
    """A line per stage on standard error; those that have ended stay."""

    def __init__(self) -> None:
        columns = (SpinnerColumn(finished_text="-"), TextColumn("{task.description}"), BarColumn(20))
        self.progress = Progress(
            *columns, MofNCompleteColumn(), TimeElapsedColumn(), console=Console(stderr=True)
        )

    def __enter__(self) -> Stages:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    @contextmanager
    def stage(self, title: str, total: int | None) -> Iterator[Callable[[int], None]]:
        task = self.progress.add_task(title, total=total)
        yield lambda done: self.progress.update(task, completed=done)
        end = total or 1
        self.progress.update(task, total=end, completed=end)


def print_verification(report: VerifyReport, console: Console) -> None:
    prompts = f"{report.settings['num_prompts']} prompts ({report.settings['prompts']})"
    console.print(f"{report.draft} on {report.target}, K={report.k}, {prompts}", markup=False)
    table = Table("check", "verdict", "found", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.columns[2].overflow = "fold"
    for check in report.checks:
        found = [Text(printable(check.said))]
        found += [Text(printable(line), style="dim") for line in check.details]
        table.add_row(check.name, Text(check.verdict.value, style=_STYLES[check.verdict]), Group(*found))
    console.print(table)
    if (without := report.settings["left_out"]) is not None:
        console.print(without, markup=False)
    console.print(_conclusion(report))


def _conclusion(report: VerifyReport) -> Text:
    def names(verdict: Verdict) -> str:
        return ", ".join(check.name for check in report.checks if check.verdict is verdict)

    if failed := names(Verdict.FAILED):
        return Text(f"FAILED: {failed}.", style=_STYLES[Verdict.FAILED])
    passed = f"Passed: {names(Verdict.PASSED)}."
    if warned := names(Verdict.WARNING):
        return Text(f"{passed} Worth a look: {warned}.", style=_STYLES[Verdict.WARNING])
    return Text(f"{passed} Nothing failed.")
