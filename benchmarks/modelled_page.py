# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/performance.md and docs/dev/gpu.md from committed results.

python -m benchmarks.modelled_page
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.texts import ON_CPUS
from benchmarks.step_model.modelled import MEASURED

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs"
KS, DRAFT, GPU, MEMORY = (1, 3, 7), "z-lab", "H100", {"H100": "80GB", "H200": "141GB"}
SHOWN = (8, 32, 128)  # clients
Cells = Sequence[dict[str, Any]]


def capacity(cells: Cells) -> str:
    """Tokens/s of the better K, that K, and the mean wait for the first token."""
    rows = [row for row in cells if row["draft"] == DRAFT and row["clients"] in SHOWN]
    loads = sorted({(row["gpu"], row["prompt"], row["clients"]) for row in rows})
    lines = []
    for gpu, prompt, clients in loads:
        here = [
            row for row in rows if (row["gpu"], row["prompt"], row["clients"]) == (gpu, prompt, clients)
        ]
        best = [
            max((row for row in here if row["scheme"] == scheme), key=lambda row: row["tokens_per_s"])
            for scheme in ("none", "per_token", "replay")
        ]
        lines.append([f"{MEMORY[gpu]},{prompt}", str(clients), *map(_capacity_cell, best)])
    return table(["GPU,prompt", "clients", "no_draft", "per_token", "replay"], lines)


def _capacity_cell(row: dict[str, Any]) -> str:
    k = f"K={row['k']};" if row["k"] else ""
    is_long_enough = row["answers"] >= row["clients"]  # everyone has queued once
    wait = f"{row['first_token_mean']:.1f}s" if is_long_enough else "-"
    return f"{row['tokens_per_s']:.0f}({k}{wait})"


def break_even(pairs: Cells) -> str:
    return table(
        ["target,draft", *(f"K={k}" for k in KS), "published"],
        [[row["pair"], *_needed(row["cells"]), ";".join(row["published"]) or "-"] for row in pairs],
    )


def _needed(cells: Cells) -> Iterator[str]:
    for cell in cells:
        if cell["gpu"] == GPU:
            yield "/".join("-" if ratio is None else f"{ratio:.2f}" for ratio in cell["needed"].values())


def engines(results: dict[str, dict[str, Any]]) -> str:
    """Texts and acceptance of the tiny pairs that drafted, next to a CPU's."""
    lines = []
    for name, result in results.items():
        if rates := result.get("acceptance"):
            equal, of = result["as_without_a_draft"]
            draft = name.split()[1]
            on_cpus = " ".join(f"{rate:.3f}" for rate in ON_CPUS[draft])
            here = " ".join(f"{rate:.3f}" for rate in rates)
            lines.append([name, result["level"], f"{equal} of {of}", here, on_cpus])
    return table(["pair", "as", "texts", "accepted, by position", "on CPUs"], lines)


def kernels(times: Cells) -> str:
    """Microseconds per request and layer: the schemes next to each other."""
    lines = []
    by_size = {(row["k"], row["requests"], row["kernels"]): row for row in times}
    for k, requests in sorted({(k, requests) for k, requests, _ in by_size}):
        chunked, sequential = (by_size[k, requests, name] for name in ("chunked", "sequential"))
        cells = (chunked["replay_ms"], sequential["replay_ms"], chunked["per_token_ms"])
        per = 1e3 / (chunked["layers"] * requests)
        lines.append(
            [str(k), str(requests), *(f"{ms * per:.1f}" for ms in cells), f"{chunked['ratio']:.2f}"]
        )
    return table(["K", "requests", "chunked", "sequential", "per_token", "ratio"], lines)


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "".join(f"|{'|'.join(line)}|\n" for line in [head, ["---"] * len(head), *lines])


def pages() -> dict[Path, dict[str, str]]:
    """Make all tables: page -> name of the block -> text."""
    files = sorted((RESULTS / "virtual_clock").glob("0.32*.json"))
    cells = [cell for file in files for cell in _read(file)["cells"]]
    measured = _read(MEASURED)
    return {
        DOCS / "performance.md": {
            "capacity": capacity(cells),
            "break_even": break_even(_read(RESULTS / "break_even.json")["pairs"]),
        },
        DOCS / "dev" / "gpu.md": {
            "engines": engines(measured["engines"]),
            "kernels": kernels(measured["times"]),
        },
    }


def _read(file: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return read


def fill(text: str, blocks: dict[str, str]) -> str:
    """Put each text between the comments of its name."""
    for name, made in blocks.items():
        block = re.compile(rf"(?<=<!-- {name}:begin -->\n).*?(?=<!-- {name}:end -->)", re.DOTALL)
        text = block.sub(lambda _, new=made: new, text)
    return text


if __name__ == "__main__":
    for path, blocks in pages().items():
        path.write_text(fill(path.read_text(encoding="utf-8"), blocks), encoding="utf-8")
