"""A progress bar on a terminal, and a line every tenth of the way in a log file."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)


class _LoggedProgress(Progress):
    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        task = self._tasks[task_id]
        tenth = max(1, int(task.total or 1) // 10)
        if not self.console.is_terminal and int(task.completed) % tenth == 0:
            self.console.print(f"{task.description}: {int(task.completed)}/{int(task.total or 0)}")


def training_progress(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description:34}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    return _LoggedProgress(*columns, console=console)
