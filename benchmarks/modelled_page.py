# SPDX-License-Identifier: Apache-2.0
"""Writes the modelled tables of docs/performance.md from committed results.

python -m benchmarks.modelled_page
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
KS, DRAFT, GPU, MEMORY = (1, 3, 7), "z-lab", "H100", {"H100": "80GB", "H200": "141GB"}
SHOWN = (8, 32, 128)  # clients
Cells = Sequence[dict[str, Any]]


def capacity(cells: Cells) -> str:
    """Tokens/s of the better K, that K, and the mean wait for the first token."""
    rows = [one for one in cells if one["draft"] == DRAFT and one["clients"] in SHOWN]
    loads = sorted({(one["gpu"], one["prompt"], one["clients"]) for one in rows})
    lines = []
    for gpu, prompt, clients in loads:
        here = [
            one for one in rows if (one["gpu"], one["prompt"], one["clients"]) == (gpu, prompt, clients)
        ]
        best = [
            max((one for one in here if one["scheme"] == scheme), key=lambda one: one["tokens_per_s"])
            for scheme in ("none", "per_token", "replay")
        ]
        lines.append([f"{MEMORY[gpu]},{prompt}", str(clients), *map(_capacity_cell, best)])
    return table(["GPU,prompt", "clients", "no_draft", "per_token", "replay"], lines)


def _capacity_cell(one: dict[str, Any]) -> str:
    k = f"K={one['k']};" if one["k"] else ""
    is_long_enough = one["answers"] >= one["clients"]  # everyone has queued once
    wait = f"{one['first_token_mean']:.1f}s" if is_long_enough else "-"
    return f"{one['tokens_per_s']:.0f}({k}{wait})"


def break_even(pairs: Cells) -> str:
    return table(
        ["target,draft", *(f"K={k}" for k in KS), "published"],
        [[row["pair"], *_needed(row["cells"]), ";".join(row["published"]) or "-"] for row in pairs],
    )


def _needed(cells: Cells) -> Iterator[str]:
    for cell in cells:
        if cell["gpu"] == GPU:
            yield "/".join("-" if one is None else f"{one:.2f}" for one in cell["needed"].values())


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "".join(f"|{'|'.join(line)}|\n" for line in [head, ["---"] * len(head), *lines])


def page(text: str) -> str:
    files = sorted((RESULTS / "virtual_clock").glob("0.32*.json"))
    cells = [cell for file in files for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]]
    pairs = json.loads((RESULTS / "break_even.json").read_text(encoding="utf-8"))["pairs"]
    for name, made in (("capacity", capacity(cells)), ("break_even", break_even(pairs))):
        block = re.compile(rf"(?<=<!-- {name}:begin -->\n).*?(?=<!-- {name}:end -->)", re.DOTALL)
        text = block.sub(lambda _, new=made: new, text)
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
