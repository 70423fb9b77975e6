# SPDX-License-Identifier: Apache-2.0
"""Commands of `vllm-eagle`.

What measures is imported when a command that needs it runs, so that the others need no extra.
"""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_eagle_ext.cli.bench import bench
from vllm_eagle_ext.cli.check.command import check
from vllm_eagle_ext.cli.plan.command import plan
from vllm_eagle_ext.cli.selftest.command import selftest
from vllm_eagle_ext.cli.terminal import console
from vllm_eagle_ext.cli.tune import tune
from vllm_eagle_ext.cli.verify import verify_draft
from vllm_eagle_ext.version import __version__

# Plain help: rich's table of options cuts their names at 80 columns.
app = typer.Typer(
    no_args_is_help=True, help="Commands of `vllm-eagle`.", pretty_exceptions_enable=False,
    rich_markup_mode=None, context_settings={"max_content_width": 120},
)  # fmt: skip
app.command()(bench)
app.command()(check)
app.command()(plan)
app.command()(selftest)
app.command()(tune)
app.command("verify")(verify_draft)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"vllm-eagle-ext {__version__}")
        raise typer.Exit


@app.callback()
def vllm_eagle(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Tools around vllm-eagle-ext."""


@app.command()
def status() -> None:
    """Say whether vLLM will load the package here; exits with 1 if it will not."""
    from vllm_eagle_ext.cli.status import read_status

    report, shown = read_status(), console()
    for line in report.lines:
        shown.print(f"{'ok ' if line.ok else 'NO '} {line.text}", markup=False)
    raise typer.Exit(0 if report.ok else 1)
