# SPDX-License-Identifier: Apache-2.0
"""Draws a report as one picture: speed-ups by concurrency, and a tune's break-even surface."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_eagle_ext.measure.bench.results import Report, Row, ServedLoad, Variant, labels
from vllm_eagle_ext.measure.bench.surface import Point, Surface, surface_of
from vllm_eagle_ext.printable import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito: told apart by colour-blind eyes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "#777777"  # no draft
STYLE: Any = {  # of rcParams
    "axes.grid": True, "grid.color": "#E4E4E4", "axes.axisbelow": True, "axes.spines.top": False,
    "axes.spines.right": False, "font.size": 10, "axes.titlesize": 11, "legend.frameon": False,
    "legend.fontsize": 9, "figure.dpi": 110, "text.parse_math": False,
}  # fmt: skip
_LETTERS = 10  # of a title, per inch
_WHOSE = {"ours": "this package", "stock": "plain vLLM"}
_LINES = ("-", "--", ":", "-.")  # by context
_MARKERS = "osD^vPX"
_LEAST_SPREAD = math.log2(1.25)  # of the colours: noise is not drawn as dark as a loss
Cell = tuple[int, int]  # row and column


def draw(report: Report, folder: Path) -> Path | None:
    """Draw the picture of a report; None of a report without a ratio to no draft."""
    import matplotlib as mpl

    name, plot = "tune.png", None
    with mpl.rc_context(STYLE):
        if report.settings.command == "bench":
            name, plot = "speedup.png", _bench_plot(report)
        elif surface := surface_of(report):
            plot = _tune_plot(report, surface)
        if plot is None:
            return None
        plot.savefig(folder / name)
    return folder / name


def _new_plot(title: str, device: str, *, width: float, height: float) -> Figure:
    """Make a plot that needs no display; `device` goes below the title. Sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    plot = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(plot)
    device = textwrap.fill(printable(device), int(_LETTERS * width))
    plot.suptitle(f"{printable(title)}\n{device}", fontsize=12)
    return plot


def _bench_plot(report: Report) -> Figure | None:
    """Draw a panel for each draft."""
    rows = [row for row in report.of("texts") if row.speedup]
    drafts = [one for one in report.settings.drafts if any(r.variant.draft == one for r in rows)]
    if not drafts:
        return None
    shown = labels([report.settings.target, *report.settings.drafts])
    served = shown[report.settings.target] + (f" with {shown[drafts[0]]}" if len(drafts) == 1 else "")
    plot = _new_plot(
        f"Speed-up against no draft: {served}", report.context.device,
        width=7.0 if len(drafts) == 1 else min(16.0, 4.6 * len(drafts)), height=4.8,
    )  # fmt: skip
    panels = plot.subplots(1, len(drafts), squeeze=False, sharey=True)[0]
    for panel, draft in zip(panels, drafts, strict=True):
        _draw_speedups(report, panel, [row for row in rows if row.variant.draft == draft])
        if len(drafts) > 1:
            panel.set_title(printable(shown[draft]))
    panels[0].set_ylim(0, 1.06 * panels[0].get_ylim()[1])
    return plot


def _tune_plot(report: Report, surface: Surface) -> Figure:
    settings, closing = report.settings, [row for row in report.of("closing") if row.speedup]
    shown = labels([settings.target, *settings.drafts])
    drafted = [k for k in settings.ks if k]
    panels = 1 + bool(closing)
    plot = _new_plot(
        f"When drafting pays: {shown[settings.target]} with {shown[settings.drafts[0]]}",
        report.context.device, width=7.2 * panels,
        height=max(4.8, 1.9 + 0.42 * len(settings.contexts) * len(drafted)),
    )  # fmt: skip
    axes = plot.subplots(1, panels, squeeze=False)[0]
    _draw_surface(report, axes[0], surface, drafted)
    if closing:
        _draw_speedups(report, axes[1], closing)
        axes[1].set_title("as served, against no draft")
        axes[1].set_ylim(bottom=0)
    return plot


def _draw_speedups(report: Report, panel: Axes, rows: Sequence[Row]) -> None:
    """Draw a line for each variant and context, with intervals; one load's stand next to each other."""
    levels = sorted({row.concurrency for row in rows})
    series = list(dict.fromkeys((row.variant, row.context) for row in rows))
    for place, (variant, context) in enumerate(series):
        own = [row for row in rows if (row.variant, row.context) == (variant, context)]
        shift = 0.3 * ((place + 0.5) / len(series) - 0.5)
        found = [(levels.index(row.concurrency) + shift, row.speedup) for row in own if row.speedup]
        middle = [one.median for _, one in found]
        error = [[g.median - g.low for _, g in found], [g.high - g.median for _, g in found]]
        style = _line_style(report, variant, context)
        panel.errorbar([at for at, _ in found], middle, yerr=error, capsize=2.5, **style)
    panel.axhline(1, color=GREY, linewidth=1.2, label="no draft")
    panel.set_xticks(range(len(levels)), [str(level) for level in levels])
    panel.set_xlim(-0.5, len(levels) - 0.5)
    panel.set_xlabel("requests at a time")
    panel.set_ylabel("tokens/s / tokens/s without a draft")
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3)


def _line_style(report: Report, variant: Variant, context: int) -> dict[str, Any]:
    """Draw stock with hollow marks; of a bench the colour names the K, of a tune what is served."""
    settings = report.settings
    if settings.command == "bench":
        place, label = settings.ks.index(variant.k), f"{_WHOSE[variant.kind]}, K={variant.k}"
        line = _LINES[variant.kind == "stock"]
    else:
        place = ["ours", "schedule", "adaptive"].index(variant.kind)
        label = f"{variant.length}, context {context}"
        line = _LINES[settings.contexts.index(context) % len(_LINES)]
    color = COLOURS[place % len(COLOURS)]
    return {
        "color": color, "label": label, "linestyle": line, "linewidth": 1.6,
        "marker": _MARKERS[place % len(_MARKERS)], "markersize": 5,
        "markerfacecolor": "none" if variant.kind == "stock" else color,
    }  # fmt: skip


def _draw_surface(report: Report, panel: Axes, surface: Surface, drafted: Sequence[int]) -> None:
    """Draw a row for each context and K, a column for each number of requests."""
    import numpy as np

    # The points of the surface, by cell.
    settings = report.settings
    names = [(context, k) for context in settings.contexts for k in drafted]
    found: dict[Cell, Point] = {}
    for place, (context, k) in enumerate(names):
        for column, requests in enumerate(settings.concurrency):
            load = ServedLoad(concurrency=requests, context=context)
            if point := surface.get((load, k)):
                found[place, column] = point
    # Colours: the measured gain, or the length that is needed for one.
    values = np.full((len(names), len(settings.concurrency)), np.nan)
    for cell, point in found.items():
        values[cell] = math.log2(point.gain or point.needed.median)
    is_measured = any(point.gain for point in found.values())
    spread = max(_LEAST_SPREAD, float(np.nanmax(np.abs(values))))
    colours: dict[str, Any] = {"cmap": "RdYlGn", "vmin": -spread, "vmax": spread}
    if not is_measured:
        colours = {"cmap": "YlOrRd", "vmin": 0, "vmax": 1.6 * spread}  # black numbers stay legible
    panel.imshow(values, aspect="auto", alpha=0.75, **colours)
    # Numbers, bold where drafting pays.
    for (row, column), point in found.items():
        weight = "bold" if point.gain and point.gain > 1 else "normal"
        text = f"{point.needed.median:.2f}"
        panel.text(column, row, text, ha="center", va="center", weight=weight)
    # Names of rows, columns and panel.
    _name_rows(report, panel, names, found)
    panel.set_xticks(range(len(settings.concurrency)), [str(n) for n in settings.concurrency])
    panel.set_xlabel("requests at a time")
    panel.grid(visible=False)
    note = "bold: the measured one is above" if is_measured else "only from step times"
    panel.set_title(f"acceptance length from which K tokens pay\n({note})")


def _name_rows(
    report: Report, panel: Axes, names: Sequence[tuple[int, int]], found: Mapping[Cell, Point]
) -> None:
    panel.set_yticks(range(len(names)), [f"context {context}, K={k}" for context, k in names])
    contexts = len(report.settings.contexts)
    for place in range(1, contexts):
        panel.axhline(place * len(names) / contexts - 0.5, color="white", lw=4)
    lengths = {place: point.length for (place, _), point in found.items() if point.length is not None}
    if lengths:
        right = panel.secondary_yaxis("right")
        right.set_yticks(list(lengths), [f"{length:.2f}" for length in lengths.values()])
        right.set_ylabel("measured acceptance length")
