# SPDX-License-Identifier: Apache-2.0
"""Defines the command `vllm-eagle selftest`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vllm_eagle_ext.cli.terminal import console, fail, require_engine
from vllm_eagle_ext.errors import EagleExtError


def selftest(
    quick: Annotated[
        bool, typer.Option("--quick", help="Test a few shapes and batch sizes instead of all.")
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            help="Write the results to this file, fit to be sent in: it holds no host names or paths.",
        ),
    ] = None,
) -> None:
    """Compare the kernels of replay with vLLM's own here.

    It needs no model. On a GPU it times both.

    Exits with 0 if all results are right, with 1 if one is wrong, and with 2 if nothing could be
    checked.
    """
    require_engine()
    from vllm_eagle_ext.cli.selftest.table import print_selftest, watching
    from vllm_eagle_ext.measure.selftest.run import run_selftest

    try:
        with watching() as watch:
            found = run_selftest(quick=quick, watch=watch)
    except EagleExtError as error:
        fail(str(error))
    if json_file is not None:
        try:
            json_file.write_text(json.dumps(found.to_json(), indent=1) + "\n")
        except OSError as error:
            fail(f"--json {json_file} cannot be written: {error.strerror}. Name another file.")
    print_selftest(found, console())
    raise typer.Exit(found.exit_code)
