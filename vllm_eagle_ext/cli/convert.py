# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle convert`: a copy of a draft for vLLM without this package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from vllm_eagle_ext.cli import parameters
from vllm_eagle_ext.cli.terminal import console, fail
from vllm_eagle_ext.errors import EagleExtError, UnsupportedDraftError

_OUT = Annotated[Path, typer.Argument(help="Write the copy to this new folder.")]
_FORMAT = Annotated[
    Literal["own", "speculators"],
    typer.Option("--format", help="Keep the draft's own format, or name target and K in another."),
]


def convert(
    draft: parameters.Draft,
    out: _OUT,
    target: parameters.Target = None,
    k: parameters.K = None,
    format_: _FORMAT = "own",
) -> None:
    """Make a copy of a draft that vLLM serves without this package.

    It adds keys to config.json. The weights are hard links to the draft's files, which you
    must not edit in place; where the file system has no links they are copied.
    A draft that vLLM serves as it is published is not copied.

    Exits with 0 if vLLM serves the draft or its copy, and with 1 if it cannot. Exits with 2 if the draft
    cannot be read or OUT cannot be written.
    """
    from vllm_eagle_ext.preflight.check import CheckRequest, run_check
    from vllm_eagle_ext.preflight.convert import convert as plan
    from vllm_eagle_ext.preflight.convert import require_new_folder, start_command, write

    shown = console()
    # Read the draft, and find out what its copy must state.
    try:
        require_new_folder(out)
        result = run_check(CheckRequest(draft=draft, target=target, k=k, options={}))
        try:
            found = plan(result, in_speculators_format=format_ == "speculators")
        except UnsupportedDraftError as refusal:
            for line in str(refusal).splitlines():
                shown.print(line)
            raise typer.Exit(1) from None
        if found is None:
            shown.print("vLLM reads this draft as it is meant by itself: nothing was written.")
            return
        how = write(found, out)
    except EagleExtError as error:
        fail(str(error))
    except OSError as error:
        fail(f"OUT cannot be written: {error}")
    # Say what was done, and how to start it.
    for name, way in how.items():
        shown.print(f"{name}: {way}")
    shown.print("Start it without this package:")
    shown.print(start_command(result, found, out))
