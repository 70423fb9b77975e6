# SPDX-License-Identifier: Apache-2.0
"""Writes the tables and pictures of docs/confidence.md from benchmarks/results/confidence_*.json.

python -m benchmarks.confidence_page
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.performance_page import table
from vllm_eagle_ext.measure.figure_style import COLOURS, GREY, STYLE, new_figure

ROOT = Path(__file__).parents[1]
RESULTS, PAGE, PICTURES = (
    ROOT / name for name in ("benchmarks/results", "docs/confidence.md", "docs/images")
)
TITLES = {
    "dense": "EAGLE-3 post-norm, K=4, dense target",
    "hybrid": "DFlash, K=7, hybrid target, replay",
}
CURVES = {"all": "all positions", "reached": "positions that were reached", "product": "running product"}

Result = dict[str, Any]


def result_file(pair: str, *, cut_off: bool = False) -> Path:
    return RESULTS / f"confidence_{pair}{'_cut_off' if cut_off else ''}_cpu.json"


def results(*, cut_off: bool = False) -> dict[str, Result]:
    """Read what is there, by pair."""
    files = {pair: result_file(pair, cut_off=cut_off) for pair in TITLES}
    return {pair: json.loads(file.read_text()) for pair, file in files.items() if file.exists()}


def rules_table(found: Result) -> str:
    """A line per rule."""
    lines = [
        (name, f"{row['rows']:.2f}", f"{row['accepted']:.3f}", f"{row['acceptance_length']:.2f}")
        for name, row in found["rules"].items()
    ]
    return table(("verified while", "rows", "accepted kept", "acceptance length"), lines)


def curves_table(found: dict[str, Result]) -> str:
    """A line per pair and figure."""
    lines = [
        (TITLES[pair], f"{one['drafts']:,}", title, f"{curve['auc']:.2f}", f"{curve['ece']:.2f}")
        for pair, one in found.items()
        for name, title in CURVES.items()
        for curve in [one["curves"][name]]
    ]
    return table(("pair", "drafts", "judged", "AUC", "ECE"), lines)


def cut_off_table(found: Result) -> str:
    """A line per number of requests."""
    names = list(next(iter(found["requests"].values()))["tokens_per_cpu_s"])
    lines = [
        (n, *(f"{row['tokens_per_cpu_s'][name]:.0f}" for name in names),
         *map(_ratio, (row["over_best_drafting"], row["over_best"])))
        for n, row in found["requests"].items()
    ]  # fmt: skip
    head = ("requests", *names, "cut-off / best K of 1 or more", "cut-off / best K")
    return table(head, lines)


def _ratio(found: dict[str, Any]) -> str:
    low, high = found["quartiles"]
    return f"{found['ratio']:.2f} ({low:.2f} to {high:.2f}), {found['best']}"


def draw(found: Result, file: Path) -> None:
    """A reliability curve with its counts, and what the rules keep."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        title = f"Confidence of drafts: {TITLES[found['pair']]}"
        device = f"{found['drafts']:,} greedy drafts, acceptance length {found['acceptance_length']:.2f}"
        figure = new_figure(title, device, width=10, height=5)
        axes = figure.subplot_mosaic([["curve", "rules"], ["counts", "rules"]], height_ratios=[3, 1])
        _draw_curves(axes["curve"], axes["counts"], found["curves"])
        _draw_rules(axes["rules"], found)
        file.parent.mkdir(exist_ok=True)
        figure.savefig(file, dpi=110, metadata={"Description": found["command"], "Software": ""})


def _draw_curves(curve: Any, counts: Any, curves: dict[str, Any]) -> None:
    curve.plot([0, 1], [0, 1], color=GREY, linestyle=":", label="calibrated")
    width = 0.03
    for place, (colour, name) in enumerate(zip(COLOURS, ("all", "reached"), strict=False)):
        found = curves[name]
        bins = found["bins"]
        label = f"{CURVES[name]}: AUC {found['auc']:.2f}, ECE {found['ece']:.2f}"
        x = [row["probability"] for row in bins]
        curve.plot(x, [row["accepted"] for row in bins], "o-", color=colour, label=label)
        tenths = [min(int(10 * each), 9) / 10 + 0.035 + place * width for each in x]
        counts.bar(tenths, [row["count"] for row in bins], width, color=colour)
    curve.set(
        xlim=(0, 1),
        ylim=(0, 1.35),
        yticks=[0, 0.25, 0.5, 0.75, 1],
        ylabel="accepted",
        title="Top-1 probability, acceptance",
    )
    curve.legend(loc="upper left")
    counts.tick_params(axis="y", which="minor", labelleft=False)
    counts.set(xlim=(0, 1), xlabel="top-1 probability of the draft", ylabel="tokens", yscale="log")


def _draw_rules(axes: Any, found: Result) -> None:
    kinds = {"fixed K'": "fixed K'", "running product": "running product", "own p": "own p (p_min)"}
    for colour, (start, label) in zip((GREY, *COLOURS), kinds.items(), strict=False):
        rows = [
            (row["rows"], row["accepted"], re.findall(r"[\d.]+", name)[0])
            for name, row in found["rules"].items()
            if name.startswith(start)
        ]
        rows += [(1.0, 1.0, str(found["k"]))] if start == "fixed K'" else []
        rows.sort()
        axes.plot([x for x, *_ in rows], [y for _, y, _ in rows], "o-", color=colour, label=label)
        offset = {"fixed K'": (5, -12), "running product": (-4, 7), "own p": (-4, -13)}[start]
        for x, y, name in rows:
            axes.annotate(
                name, (x, y), textcoords="offset points", xytext=offset,
                fontsize=8, color=colour, ha="left" if offset[0] > 0 else "right",
            )  # fmt: skip
    axes.set(xlim=(0, 1.05), ylim=(0, 1.06), xlabel="rows verified, of all drafted")
    axes.set(ylabel="accepted tokens kept", title="What a rule keeps")
    axes.legend(loc="lower right")


def write_page() -> None:
    """Draw the pictures and fill the page between its markers.

    Raises:
        SystemExit: the page has no place for a part.
    """
    found, cuts = results(), results(cut_off=True)
    for pair, one in found.items():
        draw(one, PICTURES / f"calibration_{pair}.png")
    parts = {"curves": curves_table(found), "pictures": _pictures(found)} if found else {}
    parts |= {f"rules_{pair}": rules_table(one) for pair, one in found.items()}
    parts |= {f"cut_off_{pair}": cut_off_table(one) + "\n\n" + _load(one) for pair, one in cuts.items()}
    PAGE.write_text(filled(PAGE.read_text(), parts))


def _pictures(found: dict[str, Result]) -> str:
    links = [
        f"![Calibration of {TITLES[pair]}, and what rules keep](images/calibration_{pair}.png)"
        for pair in found
    ]
    return "\n\n".join(links)


def _load(found: Result) -> str:
    """What else the machine did."""
    return (
        f"{found['rounds']} rounds of {found['steps']} steps; others kept "
        f"{found['cores_of_others']:.1f} "
        f"of {found['cores']} cores busy."
    )


def filled(page: str, parts: dict[str, str]) -> str:
    """Return the page with each part between its markers."""
    for name, made in parts.items():
        pattern = rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)"
        page, count = re.subn(
            pattern, lambda m, made=made: m[1] + made + "\n" + m[2], page, flags=re.DOTALL
        )
        if not count:
            raise SystemExit(f"{PAGE} has no place for {name}")
    return page


if __name__ == "__main__":
    write_page()
