# SPDX-License-Identifier: Apache-2.0
"""What several commands share: how they print, fail and read JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

import typer
from rich.console import Console

from vllm_eagle_ext.errors import SpeculativeConfigError

CANNOT_READ = 2
# Keywords of LLM() that the commands decide by options of their own, or need as they are.
_RESERVED = (
    "model", "speculative_config", "additional_config", "worker_extension_cls", "disable_log_stats",
    "logprobs_mode",
)  # fmt: skip


def fail(message: str, *, as_json: bool = False) -> NoReturn:
    if as_json:
        typer.echo(json.dumps({"error": message, "exit_code": CANNOT_READ}))
    else:
        Console(stderr=True, soft_wrap=True, highlight=False, emoji=False).print(message, markup=False)
    raise typer.Exit(CANNOT_READ)


def json_object(text: str, hint: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
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


def refuse_reserved(engine: Mapping[str, Any]) -> None:
    """engine: the value of --engine.

    Raises:
        SpeculativeConfigError: keywords that are not the user's to give there.
    """
    if taken := [name for name in _RESERVED if name in engine]:
        raise SpeculativeConfigError(
            field="--engine", value=taken,
            allowed="other arguments of LLM() than " + ", ".join(_RESERVED),
            remedy="use the command's options for target, draft, K, method and --eagle-ext",
        )  # fmt: skip


def console() -> Console:
    return Console(soft_wrap=True, highlight=False, emoji=False)
