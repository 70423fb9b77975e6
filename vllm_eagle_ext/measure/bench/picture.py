# SPDX-License-Identifier: Apache-2.0
"""Draws a report: speed-ups with their spread, and the K that pays at each load."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_eagle_ext.measure.bench.results import Report, Row, ServedLoad, Variant, labels
from vllm_eagle_ext.measure.bench.summary import Surface, surface_of
from vllm_eagle_ext.printable import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPEEDUP, SCHEDULE = "speedup.png", "schedule.png"
# Okabe and Ito: told apart by colour-blind eyes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "#777777"  # no draft
STYLE: Any = {  # of rcParams
    "axes.grid": True, "grid.color": "#E4E4E4", "axes.axisbelow": True, "axes.spines.top": False,
    "axes.spines.right": False, "font.size": 10, "axes.titlesize": 11, "legend.frameon": False,
    "legend.fontsize": 9, "figure.dpi": 110, "text.parse_math": False,
}  # fmt: skip
_LETTERS = 10  # of a title, per inch
_WHOSE = {"ours": "this package, ", "stock": "plain vLLM, "}
_MARKERS = "osD^vPX"
_LEAST_SPREAD = math.log2(1.25)  # of the colours: noise is not drawn as dark as a loss


def draw(report: Report, folder: Path) -> Iterator[str]:
    """Draw what the report has of the two pictures, and yield the names of their files."""
    import matplotlib as mpl

    rows = [row for stage in ("texts", "closing") for row in report.of(stage) if row.speedup]
    surface = surface_of(report)
    with mpl.rc_context(STYLE):
        if rows:
            speedup_plot(report, rows).savefig(folder / SPEEDUP)
            yield SPEEDUP
        if surface:
            _schedule_plot(report, surface).savefig(folder / SCHEDULE)
            yield SCHEDULE


def _new_plot(report: Report, title: str, *, width: float, height: float) -> Figure:
    """Make a plot that needs no display; target, draft and device go into its title. Sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings = report.settings
    shown = labels([settings.target, *settings.drafts])
    drafts = f" with {shown[settings.drafts[0]]}" if len(settings.drafts) == 1 else ""
    plot = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(plot)
    device = textwrap.fill(printable(report.context.device), int(_LETTERS * width))
    plot.suptitle(f"{title}: {printable(shown[settings.target] + drafts)}\n{device}", fontsize=12)
    return plot


def speedup_plot(report: Report, rows: Sequence[Row]) -> Figure:
    """Draw a panel for each draft and context, which hold the rows between them."""
    shown = labels(report.settings.drafts)
    panels = list(dict.fromkeys((str(row.variant.draft), row.context) for row in rows))
    plot = _new_plot(
        report, "Speed-up against no draft", height=4.8,
        width=7.0 if len(panels) == 1 else min(16.0, 4.6 * len(panels)),
    )  # fmt: skip
    axes = plot.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for panel, (draft, context) in zip(axes, panels, strict=True):
        own = [row for row in rows if (row.variant.draft, row.context) == (draft, context)]
        _draw_speedups(panel, own)
        if len(panels) > 1:
            panel.set_title(f"context {context}" if context else printable(shown[draft]))
    axes[0].set_ylabel("tokens/s / tokens/s without a draft")
    axes[0].set_ylim(0, 1.06 * axes[0].get_ylim()[1])
    return plot


def _draw_speedups(panel: Axes, rows: Sequence[Row]) -> None:
    """Draw a line for each variant, with intervals; those of one load stand next to each other."""
    levels = sorted({row.concurrency for row in rows})
    variants = list(dict.fromkeys(row.variant for row in rows))
    alike = list(dict.fromkeys(variant.length for variant in variants))
    for place, variant in enumerate(variants):
        shift = 0.3 * ((place + 0.5) / len(variants) - 0.5)
        points = [
            (levels.index(row.concurrency) + shift, row.speedup)
            for row in rows
            if row.variant == variant and row.speedup
        ]
        error = [[g.median - g.low for _, g in points], [g.high - g.median for _, g in points]]
        style = _line_style(variant, alike.index(variant.length))
        panel.errorbar(
            [at for at, _ in points], [gain.median for _, gain in points], yerr=error, **style
        )
    panel.axhline(1, color=GREY, linewidth=1.2, label="no draft")
    panel.set_xticks(range(len(levels)), [str(level) for level in levels])
    panel.set_xlim(-0.5, len(levels) - 0.5)
    panel.set_xlabel("requests at a time")
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3)


def _line_style(variant: Variant, place: int) -> dict[str, Any]:
    color, is_stock = COLOURS[place % len(COLOURS)], variant.kind == "stock"
    return {
        "color": color, "label": _WHOSE.get(variant.kind, "") + variant.length, "linewidth": 1.6,
        "linestyle": "--" if is_stock else "-", "marker": _MARKERS[place % len(_MARKERS)],
        "markersize": 5, "markerfacecolor": "none" if is_stock else color, "capsize": 2.5,
    }  # fmt: skip


def _schedule_plot(report: Report, surface: Surface) -> Figure:
    """Draw a row for each context and K, a column for each number of requests."""
    import numpy as np

    settings = report.settings
    names = [(context, k) for context in settings.contexts for k in settings.ks if k]
    plot = _new_plot(report, "When drafting pays", width=7.2, height=max(4.8, 1.9 + 0.42 * len(names)))
    panel = plot.subplots()
    # The points of the surface, by row and column.
    points = {
        (row, column): point
        for row, (context, k) in enumerate(names)
        for column, requests in enumerate(settings.concurrency)
        if (point := surface.get((ServedLoad(concurrency=requests, context=context), k)))
    }
    # Colours: the measured gain, or the length that is needed for one.
    values = np.full((len(names), len(settings.concurrency)), np.nan)
    for cell, point in points.items():
        values[cell] = math.log2(point.gain or point.needed.median)
    is_measured = any(point.gain for point in points.values())
    spread = max(_LEAST_SPREAD, float(np.nanmax(np.abs(values))))
    colours: dict[str, Any] = {"cmap": "RdYlGn", "vmin": -spread, "vmax": spread}
    if not is_measured:
        colours = {"cmap": "YlOrRd", "vmin": 0, "vmax": 1.6 * spread}  # black numbers stay legible
    panel.imshow(values, aspect="auto", alpha=0.75, **colours)
    # Numbers, bold where drafting pays.
    for (row, column), point in points.items():
        weight = "bold" if point.gain and point.gain > 1 else "normal"
        text = f"{point.needed.median:.2f}"
        panel.text(column, row, text, ha="center", va="center", weight=weight)
    # Names of rows, columns and panel; the lengths that were measured stand on the right.
    panel.set_yticks(range(len(names)), [f"context {context}, K={k}" for context, k in names])
    panel.set_xticks(range(len(settings.concurrency)), [str(n) for n in settings.concurrency])
    panel.set_xlabel("requests at a time")
    panel.grid(visible=False)
    lengths = {row: point.length for (row, _), point in points.items() if point.length is not None}
    if lengths:
        right = panel.secondary_yaxis("right")
        right.set_yticks(list(lengths), [f"{length:.2f}" for length in lengths.values()])
        right.set_ylabel("measured acceptance length")
    note = "bold: the measured one is above" if is_measured else "only from step times"
    panel.set_title(f"acceptance length from which K tokens pay\n({note})")
    return plot
