# SPDX-License-Identifier: Apache-2.0
"""Writes the tables and pictures of docs/performance.md from benchmarks/results/performance/.

python -m benchmarks.performance_page
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from vllm_eagle_ext.measure.bench.plots import draw
from vllm_eagle_ext.measure.bench.rows import BenchReport

RESULTS = Path("benchmarks/results/performance")
PAGE = Path("docs/performance.md")
PICTURES = Path("docs/performance")

Row = dict[str, Any]


def with_part(text: str, name: str, made: str, page: Path) -> str:
    """The page's text, with what was made between the markers of that name."""
    pattern = rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)"
    text, found = re.subn(pattern, lambda m: m[1] + made + "\n" + m[2], text, flags=re.DOTALL)
    if not found:
        raise SystemExit(f"{page} has no place for {name}")
    return text


def rows(name: str) -> list[Row]:
    """The rows of a committed report, read as `vllm-eagle bench report` reads those of any release."""
    file = RESULTS / f"{name}.json"
    if not file.exists():
        return []
    found: list[Row] = BenchReport.model_validate_json(file.read_text()).model_dump(mode="json")["rows"]
    return found


def interval(found: dict[str, Any] | None) -> str:
    if found is None:
        return "-"
    return f"{found['median']:.3f} ({found['low']:.3f} to {found['high']:.3f}, {found['pairs']} pairs)"


def ratio(found: dict[str, Any] | None) -> str:
    return "-" if found is None else f"{found['median']:.2f}x"


def table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    shown = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(shown + [f"| {' | '.join(map(str, line))} |" for line in lines])


def side_by_side() -> str:
    titles = {"native": "K=4", "postnorm": "K=4", "hybrid_slots": "K=7, per_token"}
    return table(
        ("draft", "concurrency", "ours / stock, tokens/s", "acceptance length, ours and stock"),
        [
            (f"{Path(row['variant']['draft']).name}, {title}", row["concurrency"],
             interval(row["against_stock"]), " ".join(lengths(name, row)))
            for name, title in titles.items()
            for row in rows(name)
            if row["variant"]["kind"] == "ours"
        ],
    )  # fmt: skip


def lengths(name: str, ours: Row) -> list[str]:
    same = [row for row in rows(name) if row["concurrency"] == ours["concurrency"]]
    variant = ours["variant"]
    return [
        f"{row['acceptance_length']:.2f}"
        for kind in ("ours", "stock")
        for row in same
        if row["variant"] == variant | {"kind": kind}
    ]


def growth(names: dict[str, str], grown: str, value: Callable[[str, Row], object]) -> str:
    """A line per variant that was measured, none, stock and ours side by side."""
    lines = []
    for name, title in names.items():
        found = rows(name)
        for row in found:
            if row["variant"]["kind"] == "ours":
                stock = _other(found, row, row["variant"] | {"kind": "stock"})
                plain = _other(found, row, {"kind": "none", "draft": None, "k": 0})
                steps = [f"{one['step_ms']:.1f}" if one else "-" for one in (plain, stock, row)]
                lines.append(
                    (title, value(name, row), *steps, ratio(row["against_stock"]),
                     f"{row['acceptance_length']:.2f}", ratio(row["speedup"]))
                )  # fmt: skip
    head = (
        "pair",
        grown,
        "step, no draft, ms",
        "stock",
        "ours",
        "ours / stock",
        "acceptance length",
        "over no draft",
    )
    return table(head, lines)


def _other(found: Sequence[Row], row: Row, variant: dict[str, Any]) -> Row | None:
    same = [one for one in found if one["concurrency"] == row["concurrency"]]
    return next((one for one in same if one["variant"] == variant and one["step_ms"]), None)


def by_concurrency() -> str:
    names = {"by_concurrency": "post-norm, K=4", "hybrid_by_concurrency": "DFlash, K=7, replay"}
    return growth(names, "requests", lambda _, row: row["concurrency"])


def by_k() -> str:
    names = {"by_k": "post-norm", "hybrid_by_k": "DFlash"}
    return growth(names, "K, requests", lambda _, row: f"{row['variant']['k']}, {row['concurrency']}")


def by_prompt() -> str:
    lengths = (100, 500, 1500)
    names = {f"dense_prompts_{length}": "post-norm, K=4" for length in lengths}
    names |= {f"hybrid_prompts_{length}": "DFlash, K=7, replay" for length in lengths}
    return growth(names, "tokens of the prompt", lambda name, _: name.rpartition("_")[2])


def gated() -> str:
    lines = [
        (row["variant"]["kind"], f"{row['acceptance_length']:.2f}",
         " ".join(f"{rate:.2f}" for rate in row["acceptance"]), ratio(row["speedup"]))
        for row in rows("gated") if row["variant"]["draft"]
    ]  # fmt: skip
    return table(("served by", "acceptance length", "acceptance per position", "over no draft"), lines)


def pictures() -> None:
    """As a bench draws them; one that has nothing to show is removed."""
    for file in sorted(RESULTS.glob("*.json")):
        folder = PICTURES / file.stem
        folder.mkdir(parents=True, exist_ok=True)
        draw(BenchReport.model_validate_json(file.read_text()), folder)


def main() -> None:
    pictures()
    text = PAGE.read_text()
    for write in (side_by_side, by_concurrency, by_k, by_prompt, gated):
        text = with_part(text, write.__name__, write(), PAGE)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
