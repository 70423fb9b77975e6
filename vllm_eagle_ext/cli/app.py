# SPDX-License-Identifier: Apache-2.0
"""Commands of `vllm-eagle`."""

from __future__ import annotations

import typer
from rich.console import Console

from vllm_eagle_ext.cli.status import StatusReport, read_status

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)


@app.callback()
def main() -> None:
    """Tools around vllm-eagle-ext."""


@app.command()
def status() -> None:
    """Say whether vLLM will load the package here; exits with 1 if it will not."""
    report = read_status()
    _print(report)
    raise typer.Exit(0 if report.ok else 1)


def _print(report: StatusReport) -> None:
    console = Console(soft_wrap=True, highlight=False)
    for line in report.lines:
        console.print(f"{'ok ' if line.ok else 'NO '} {line.text}", markup=False)
