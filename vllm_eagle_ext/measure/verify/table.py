# SPDX-License-Identifier: Apache-2.0
"""How a verification looks on a terminal, while it runs and at its end, and where its logs are."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

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

from vllm_eagle_ext.measure.verify.acceptance import CERTAIN
from vllm_eagle_ext.measure.verify.readings import Comparison
from vllm_eagle_ext.measure.verify.request import Verdict, VerifyReport
from vllm_eagle_ext.options import KEY
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
        errors = Console(stderr=True)
        errors.width = errors.width if errors.is_terminal else 1000  # a pipe cuts nothing
        self.progress = Progress(*columns, MofNCompleteColumn(), TimeElapsedColumn(), console=errors)

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
        lines = [Text(printable(check.said))]
        lines += [Text(printable(line), style="dim") for line in check.details]
        table.add_row(check.name, Text(check.verdict.value, style=_STYLES[check.verdict]), Group(*lines))
    console.print(table)
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


class Logs:
    """A folder for the engines' logs. It stays, and is named, unless all passed or no engine started."""

    passed = False

    def __enter__(self) -> Logs:
        self.folder = Path(tempfile.mkdtemp(prefix="vllm-eagle-verify-"))
        return self

    def __exit__(self, *_: object) -> None:
        if self.passed or not any(self.folder.iterdir()):
            shutil.rmtree(self.folder)
            return
        shown = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)
        shown.print(f"The engines' logs: {self.folder}", markup=False)


def print_answer(answer: Comparison, console: Console) -> None:
    option, at = answer.question.option, answer.question.position
    decides = f"position {at + 1} of those accepted before"
    table = Table(option, "drafts", "acceptance per position", "length", decides)
    for each in answer.measured:
        rates = " ".join(f"{rate:.2f}" for rate in each.rates)
        share = f"{each.share(at):.3f} ± {each.error(at):.3f}"
        length = f"{each.acceptance_length:.2f}"
        table.add_row(json.dumps(each.value), str(each.drafts), rates, length, share)
    console.print(table)
    if at:
        console.print(f"Before position {at + 1} both draft the same tokens.")
    if answer.is_low:
        console.print("Both are low: something else is wrong as well, see `vllm-eagle check`.")
    if (best := answer.best) is None:
        console.print(
            f"Too close to tell: less than {CERTAIN:g} standard errors apart. Use a larger "
            "--num-prompts or a larger --max-tokens."
        )
        return
    served = json.dumps({KEY: {**answer.options, option: best.value}})
    said = (
        f"{option} {json.dumps(best.value)} is right. State it in config.json, or serve with "
        f"--additional-config '{served}'"
    )
    console.print(said, markup=False)
