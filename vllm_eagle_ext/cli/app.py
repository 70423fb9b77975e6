# SPDX-License-Identifier: Apache-2.0
"""Commands of `vllm-eagle`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console

from vllm_eagle_ext.errors import EagleExtError

CANNOT_READ = 2

app = typer.Typer(no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False)


@app.callback()
def main() -> None:
    """Tools around vllm-eagle-ext."""


@app.command()
def status() -> None:
    """Say whether vLLM will load the package here; exits with 1 if it will not."""
    from vllm_eagle_ext.cli.status import read_status

    report, console = read_status(), _console()
    for line in report.lines:
        console.print(f"{'ok ' if line.ok else 'NO '} {line.text}", markup=False)
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
            revision=revision, download_dir=download_dir, options=_options(eagle_ext),
        )  # fmt: skip
        result = checking.run_check(request)
    except EagleExtError as error:
        if as_json:
            typer.echo(json.dumps({"error": str(error), "exit_code": CANNOT_READ}))
        else:
            Console(stderr=True, soft_wrap=True, highlight=False).print(str(error), markup=False)
        raise typer.Exit(CANNOT_READ) from None
    if as_json:
        typer.echo(checking.to_json(result))
    else:
        print_check(result, _console())
    raise typer.Exit(result.exit_code)


def _options(text: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise typer.BadParameter("a JSON object is needed", param_hint="--eagle-ext")
    return options


def _console() -> Console:
    return Console(soft_wrap=True, highlight=False, emoji=False)
