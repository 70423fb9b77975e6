# SPDX-License-Identifier: Apache-2.0
"""Where a verification keeps what its engines print."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from rich.console import Console


class Logs:
    """A folder for the engines' logs. It stays, and is named, unless all passed or no engine started.

    Args:
        console: where the folder is named; None: standard error.
    """

    passed = False

    def __init__(self, console: Console | None = None) -> None:
        self.console = console

    def __enter__(self) -> Logs:
        self.folder = Path(tempfile.mkdtemp(prefix="vllm-eagle-verify-"))
        return self

    def __exit__(self, *_: object) -> None:
        if self.passed or not any(self.folder.iterdir()):
            shutil.rmtree(self.folder)
            return
        shown = self.console or Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)
        shown.print(f"The engines' logs: {self.folder}", markup=False)
