# SPDX-License-Identifier: Apache-2.0
"""The commands of `vllm-eagle`.

What measures is imported when a command that needs it runs, so that the others need no extra.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vllm_eagle_ext.cli import parameters
from vllm_eagle_ext.cli.bench import bench, tune
from vllm_eagle_ext.cli.check import check, convert, rule
from vllm_eagle_ext.cli.plan import plan
from vllm_eagle_ext.cli.selftest import selftest
from vllm_eagle_ext.cli.terminal import Command, Group, console, json_text
from vllm_eagle_ext.cli.verify import verify_draft
from vllm_eagle_ext.cli.vocabulary import vocabulary
from vllm_eagle_ext.version import __version__, installed_vllm

# Plain help: rich's table of options cuts their names at 80 columns.
app = typer.Typer(
    cls=Group, no_args_is_help=True, pretty_exceptions_enable=False,
    rich_markup_mode=None, context_settings={"max_content_width": 120},
)  # fmt: skip


def _with_example(words: str) -> Any:
    return app.command(words.split()[0], cls=Command, epilog=f"Example: vllm-eagle {words}")


# In the order in which they are listed, and used.
_with_example("check DRAFT --target TARGET -k 4")(check)
_with_example("rule tensors_are_complete")(rule)
_with_example("convert DRAFT OUT --target TARGET")(convert)
_with_example("plan DRAFT --target TARGET -k 3,7 --gpu-mem 80")(plan)
_with_example("verify DRAFT --target TARGET --quick")(verify_draft)
_with_example("bench DRAFT --target TARGET -k 3,5,7")(bench)
app.command(
    hidden=True, add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)(tune)  # fmt: skip
_with_example("vocabulary DRAFT --target TARGET --texts answers.jsonl")(vocabulary)
_with_example("selftest --out selftest.json")(selftest)


def _print_version(asked: bool) -> None:
    if asked:
        release = installed_vllm()
        typer.echo(f"vllm-eagle-ext {__version__}, {f'vLLM {release}' if release else 'no vLLM'}")
        raise typer.Exit


@app.callback()
def vllm_eagle(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the versions."),
    ] = False,
) -> None:
    """Check, plan, test and measure draft models for vLLM.

    A draft model proposes tokens, and the target checks them. Take the commands in this order.
    """


@_with_example("status")
def status(as_json: parameters.AsJson = False) -> None:
    """Tell whether vLLM will load this package here.

    Exits with 0 if it will, and with 1 if it will not.
    """
    from vllm_eagle_ext.cli.status import lines, read_status

    result = read_status()
    code, shown = int(not result["ok"]), console()
    if as_json:
        typer.echo(json_text(result, code))
    else:
        for line in lines(result):
            shown.print(line)
    raise typer.Exit(code)
