# SPDX-License-Identifier: Apache-2.0
"""What several commands share: how they print, fail and read JSON."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from vllm_eagle_ext.printable import printable

CANNOT_READ = 2


def fail(message: str, *, as_json: bool = False) -> NoReturn:
    if as_json:
        typer.echo(json.dumps({"error": message, "exit_code": CANNOT_READ}))
    else:
        shown = console(stderr=True)
        for line in message.split("\n"):
            shown.print(line)
    raise typer.Exit(CANNOT_READ)


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
