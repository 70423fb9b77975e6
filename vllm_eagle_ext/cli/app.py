# SPDX-License-Identifier: Apache-2.0
"""Commands of `vllm-eagle`."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_eagle_ext import __version__
from vllm_eagle_ext.cli.bench.command import app as bench
from vllm_eagle_ext.cli.plan.command import plan
from vllm_eagle_ext.cli.shared import console, fail, json_object
from vllm_eagle_ext.cli.verify.command import verify
from vllm_eagle_ext.errors import EagleExtError

# Plain help: rich's table of options cuts their names at 80 columns.
app = typer.Typer(
    no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False, rich_markup_mode=None,
    context_settings={"max_content_width": 120},
)  # fmt: skip
app.add_typer(bench, name="bench")
app.command()(plan)
app.command()(verify)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"vllm-eagle-ext {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
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


@app.command()
def check(
    draft: Annotated[str, typer.Argument(help="Folder or hub repository of the draft.")],
    target: Annotated[str, typer.Option(help="Folder or hub repository of the target.")],
    k: Annotated[
        int | None,
        typer.Option("-k", "--num-speculative-tokens", min=1, help="Tokens to draft at a time."),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="As in --speculative-config; else the draft's own.")
    ] = None,
    max_model_len: Annotated[int | None, typer.Option(min=1, help="As for vllm serve.")] = None,
    revision: Annotated[str | None, typer.Option(help="Of the draft, on the hub.")] = None,
    download_dir: Annotated[str | None, typer.Option(help="Where vLLM keeps hub files.")] = None,
    eagle_ext: Annotated[
        str, typer.Option(help='Options as in additional_config, e.g. \'{"aux_layers": "boundary"}\'.')
    ] = "{}",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say what a draft is and whether it will be served rightly, before serving it.

    Exits with 0 if it will be, with 1 if it would be refused, with 2 if it cannot be read.
    """
    from vllm_eagle_ext.cli import check as checking
    from vllm_eagle_ext.cli.check_table import print_check

    try:
        request = checking.CheckRequest(
            draft=draft, target=target, k=k, method=method, max_model_len=max_model_len,
            revision=revision, download_dir=download_dir, options=json_object(eagle_ext, "--eagle-ext"),
        )  # fmt: skip
        result = checking.run_check(request)
    except EagleExtError as error:
        fail(str(error), as_json=as_json)
    if as_json:
        typer.echo(checking.to_json(result))
    else:
        print_check(result, console())
    raise typer.Exit(result.exit_code)
