"""What was seen of each pair as a row of the table in docs/targets.md, and the table.

Figures are rounded to what is the same on every machine: bounds that hold, shares of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.targets.families import FAMILIES, Family, Pair

Row = dict[str, str]
Results = Mapping[str, Any]  # by family
OTHER_RUNS = ("two_ranks", "v2")  # columns
EQUAL_IDS = 0.99  # near-ties apart, at every position
HEADINGS = {
    "target": "target",
    "draft": "draft",
    "served_as": "served as",
    "own": "its own drafts",
    "right": "oracle drafts",
    "wrong": "adversarial drafts",
    "text": "text",
    "states": "states",
    "two_ranks": "two ranks",
    "v2": "V2 runner",
}


def rows_of(served: Results, parallel: Results, v2: Results) -> list[Row]:
    """In the order of the table; of the families in `served` alone."""
    rows = []
    for name in (name for name in FAMILIES if name in served):
        for pair in FAMILIES[name].pairs:
            row = row_of(FAMILIES[name], pair, served[name])
            for column, others in zip(OTHER_RUNS, (parallel, v2), strict=True):
                if name in others:
                    row[column] = beside(row, FAMILIES[name], pair, others[name])
            rows.append(row)
    return rows


def row_of(family: Family, pair: Pair, served: Mapping[str, Any]) -> Row:
    precision = {"float32": "fp32", "bfloat16": "bf16"}[family.dtype]
    return {
        "target": f"{family.title}: `{family.target}`, {precision}",
        "draft": f"{pair.title}, K={pair.k}",
        **verdict(family, pair, of_pair(served, pair)),
    }


def beside(row: Row, family: Family, pair: Pair, served: Mapping[str, Any]) -> str:
    """What another run of the same pair said, where it is not the same."""
    other = verdict(family, pair, of_pair(served, pair))
    return "; ".join(value for key, value in other.items() if row.get(key) != value) or "the same"


def of_pair(served: Mapping[str, Any], pair: Pair) -> Mapping[str, Any]:
    return served["pairs"][pair.title] if "pairs" in served else served


def verdict(family: Family, pair: Pair, run: Mapping[str, Any]) -> Row:
    if "error" in run:
        return {"served_as": "not started", "error": run["error"]}
    texts = [gap for drafts in ("own", "always", "never") for gap in run[drafts]["gaps"]]
    right = [count / run["always"]["drafts"] for count in run["always"]["accepted"]]
    worst = max(run["state_errors"].values())
    layer_ids = ", ".join(map(str, pair.layer_ids))
    return {
        "served_as": f"`{run['drafter']}`",
        "own": own_drafts(run),
        "right": f"{right[0]:.2f} at all {pair.k}" if len(set(right)) == 1 else f"{right}",
        "wrong": str(sum(run["never"]["accepted"])),
        "text": "equal" if not texts else f"{len(texts)} diverge, at gaps up to {max(texts)}",
        "states": f"{layer_ids}: {'<' if worst < family.bound else 'NOT <'} {family.bound:g}",
    }


def own_drafts(run: Mapping[str, Any]) -> str:
    if "reference" not in run:
        return "not compared"
    share = min(run["reference"]["equal"])
    return "those of the reference" if share >= EQUAL_IDS else f"{share:.3f} of the reference's"


def table(rows: list[Row]) -> str:
    lines = [f"|{'|'.join(HEADINGS.values())}|", "|---" * len(HEADINGS) + "|"]
    for row in rows:
        cells = {name: row.get(name, "-") for name in HEADINGS}
        if "error" in row:
            cells["served_as"] = f"not started: `{row['error']}`"
        lines.append(f"|{'|'.join(cells.values())}|")
    return "\n".join(lines)
