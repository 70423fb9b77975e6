# SPDX-License-Identifier: Apache-2.0
"""What `vllm-eagle verify` reads and shows."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vllm_eagle_ext.cli.acceptance_run import PROMPTS
from vllm_eagle_ext.cli.verify import Verdict
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.options import KEY


def read_prompts(path: Path | None) -> list[str]:
    """One a line; a line of JSON holds a text or an object with one under `text` or `prompt`.

    Raises:
        SpeculativeConfigError: no file, or no prompt in it.
    """
    if path is None:
        return list(PROMPTS)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _no_prompts(path, str(error)) from None
    texts = [text for text in map(_text, lines) if text]
    if not texts:
        raise _no_prompts(path, "it has no prompt")
    return texts


def _text(line: str) -> str:
    try:
        found = json.loads(line)
    except ValueError:
        return line
    if isinstance(found, dict):
        found = found.get("text") or found.get("prompt")
    return found if isinstance(found, str) else line


def _no_prompts(path: Path, problem: str) -> SpeculativeConfigError:
    return SpeculativeConfigError(
        field="--prompts",
        value=str(path),
        allowed="a text file with one prompt a line, or JSON lines",
        remedy=f"check the file ({problem}), or leave the option out for built-in prompts",
    )


def print_verdict(verdict: Verdict, console: Console) -> None:
    table = Table("gate_layout", "drafts", "acceptance per position", "tau")
    for row in verdict.measured:
        rates = " ".join(f"{rate:.2f}" for rate in row.rates)
        table.add_row(row.layout, str(row.drafts), rates, f"{row.tau:.2f}")
    console.print(table)
    if verdict.winner is None:
        console.print("Too close to tell: use more --prompts or a larger --max-tokens.")
        return
    option = json.dumps({KEY: {**verdict.options, "gate_layout": verdict.winner}})
    if verdict.is_low:
        console.print("Both are low: something else is wrong as well, see `vllm-eagle check`.")
    console.print(f"{verdict.winner}. Serve it with --additional-config '{option}'", markup=False)
