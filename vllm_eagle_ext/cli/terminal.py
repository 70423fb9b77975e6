# SPDX-License-Identifier: Apache-2.0
"""What several commands share: what they need, how they print, fail and read JSON."""

from __future__ import annotations

import errno
import json
import os
import sys
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from vllm_eagle_ext.printable import printable
from vllm_eagle_ext.version import INSTALL_VLLM

CANNOT_READ = 2
_NAMING = ("--target", "--draft", "--out", "--texts", "--prompts")  # "" would be the working folder
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
_BRIEF = 400  # characters of another library's error


class Group(TyperGroup):
    """Ends a command whose output has no room, as on a full disk, with one line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = [word for arg in args for word in (arg.split("=", 1) if arg[:2] == "--" else [arg])]
        for before, given in pairwise(["", *words]):
            if not given and (before in _NAMING or before[:1] != "-"):
                raise typer.BadParameter(f"what follows {before!r} is empty: give it a name")
        return super().parse_args(ctx, args)

    def main(self, *args: Any, **given: Any) -> Any:
        try:
            try:
                return super().main(*args, **given)
            finally:
                sys.stdout.flush()
        except OSError as error:
            if error.errno not in _NO_ROOM or error.filename is not None:  # not of the output
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())  # what is left there is written at the exit
            sys.stderr.write(f"vllm-eagle-ext: the output cannot be written: {printable(str(error))}\n")
            sys.exit(CANNOT_READ)


def fail(message: str, *, as_json: bool = False) -> NoReturn:
    if as_json:
        typer.echo(json.dumps({"error": message, "exit_code": CANNOT_READ}))
    else:
        shown = console(stderr=True)
        for line in message.split("\n"):
            shown.print(line)
    raise typer.Exit(CANNOT_READ)


def require_engine(*, as_json: bool = False) -> None:
    """End a command that starts engines or runs kernels where they cannot be imported."""
    missing = [package for package in ("vllm", "torch") if find_spec(package) is None]
    if missing:
        fail(f"This command needs {' and '.join(missing)}. {INSTALL_VLLM}", as_json=as_json)
    try:
        import vllm  # noqa: F401
    except (Exception, SystemExit) as error:  # noqa: BLE001 - what a broken installation raises differs
        fail(cannot_import(error), as_json=as_json)


def cannot_import(error: BaseException) -> str:
    """Say that vLLM is broken, and what to do."""
    cause = printable(" ".join(f"{type(error).__name__}: {error}".split())[:_BRIEF])
    return f"vLLM cannot be imported ({cause}). {INSTALL_VLLM}"


def json_object(text: str, hint: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise typer.BadParameter("a JSON object is needed", param_hint=hint)
    return found


def numbers(text: str, hint: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise typer.BadParameter("whole numbers above 0 with commas between", param_hint=hint)
    return found


def console(*, stderr: bool = False) -> Console:
    return _Plain(stderr=stderr, soft_wrap=True, highlight=False, emoji=False, markup=False)


class _Plain(Console):
    """Shows each str on one line, in a table too, and escapes what would act on the terminal."""

    def render_str(self, text: str, **given: Any) -> Text:
        return super().render_str(printable(text), **given)
