# SPDX-License-Identifier: Apache-2.0
"""A tune's report as one picture: the break-even surface, and tokens/s over concurrency."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_eagle_ext.measure.bench.rows import labels
from vllm_eagle_ext.measure.figure_style import COLOURS, GREY, STYLE, new_figure
from vllm_eagle_ext.measure.tune.report import SurfaceRow, TuneReport
from vllm_eagle_ext.measure.tune.results import NONE, ServedConfig, ServedLoad

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LINES = ("-", "--", ":", "-.")  # by context
_COLOURS = {"none": GREY} | dict(zip(("fixed", "schedule", "adaptive"), COLOURS, strict=False))
_LEAST_SPREAD = math.log2(1.25)  # of the colours: noise is not drawn as dark as a loss
Cell = tuple[int, int]  # row and column


def draw_tune(report: TuneReport, path: Path) -> Path:
    """Draw the break-even surface, and beside it tokens/s where a closing round was measured."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        shown = labels([report.settings.target, report.settings.draft])
        target, draft = shown[report.settings.target], shown[report.settings.draft]
        drafted = [k for k in report.settings.drafted if any(row.k == k for row in report.surface)]
        rows = len(report.settings.contexts) * len(drafted)
        panels = 1 + bool(report.closing)
        figure = new_figure(
            f"When drafting pays: {target} with {draft}", report.context.device,
            width=7.2 * panels, height=max(4.8, 1.9 + 0.42 * rows),
        )  # fmt: skip
        axes = figure.subplots(1, panels, squeeze=False)[0]
        _draw_surface(report, axes[0], drafted)
        if report.closing:
            _draw_rates(report, axes[1])
        figure.savefig(path)
    return path


def _draw_surface(report: TuneReport, panel: Axes, drafted: Sequence[int]) -> None:
    """A row for each context and K, a column for each number of requests."""
    import numpy as np

    settings = report.settings
    names = [(context, k) for context in settings.contexts for k in drafted]
    found: dict[Cell, SurfaceRow] = {}
    for place, (context, k) in enumerate(names):
        for column, requests in enumerate(settings.requests):
            if row := report.row(ServedLoad(requests=requests, context=context), k):
                found[place, column] = row
    values = np.full((len(names), len(settings.requests)), np.nan)
    for cell, row in found.items():
        values[cell] = math.log2(row.gain) if row.gain else math.log2(row.needed.median)
    is_measured = any(row.gain for row in found.values())
    spread = max(_LEAST_SPREAD, float(np.nanmax(np.abs(values))) if found else 0)
    colours: dict[str, Any] = {"cmap": "RdYlGn", "vmin": -spread, "vmax": spread}
    if not is_measured:
        colours = {"cmap": "YlOrRd", "vmin": 0, "vmax": 1.6 * spread}  # black figures stay legible
    panel.imshow(values, aspect="auto", alpha=0.75, **colours)
    for (place, column), row in found.items():
        pays = bool(row.gain and row.gain > 1)
        weight = "bold" if pays else "normal"
        panel.text(column, place, f"{row.needed.median:.2f}", ha="center", va="center", weight=weight)
    for line in _outline({cell for cell, row in found.items() if row.gain and row.gain > 1}):
        panel.plot(*line, color="black", linewidth=2)
    _name_rows(report, panel, names, found)
    panel.set_xticks(range(len(settings.requests)), [str(level) for level in settings.requests])
    panel.set_xlabel("requests at a time")
    panel.grid(visible=False)
    note = "bold, outlined: the measured one is above" if is_measured else "from step times alone"
    panel.set_title(f"acceptance length from which K tokens pay\n({note})")


def _name_rows(
    report: TuneReport, panel: Axes, names: Sequence[tuple[int, int]], found: dict[Cell, SurfaceRow]
) -> None:
    panel.set_yticks(range(len(names)), [f"context {context}, K={k}" for context, k in names])
    for place in range(len(report.settings.contexts) - 1):
        panel.axhline(
            (place + 1) * len(names) / len(report.settings.contexts) - 0.5, color="white", lw=4
        )
    lengths = {place: row.length for (place, _), row in found.items() if row.length is not None}
    if lengths:
        right = panel.secondary_yaxis("right")
        right.set_yticks(list(lengths), [f"{length:.2f}" for length in lengths.values()])
        right.set_ylabel("measured acceptance length")


def _outline(cells: set[Cell]) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    """Edges between these cells and others, as x and y of both ends."""
    for row, column in cells:
        left, right, top, bottom = column - 0.5, column + 0.5, row - 0.5, row + 0.5
        if (row - 1, column) not in cells:
            yield (left, right), (top, top)
        if (row + 1, column) not in cells:
            yield (left, right), (bottom, bottom)
        if (row, column - 1) not in cells:
            yield (left, left), (top, bottom)
        if (row, column + 1) not in cells:
            yield (right, right), (top, bottom)


def _draw_rates(report: TuneReport, panel: Axes) -> None:
    settings = report.settings
    for served in report.compared:
        for context, line in zip(settings.contexts, _LINES * len(settings.contexts), strict=False):
            rows = [
                row
                for requests in settings.requests
                if (row := report.closed(served, ServedLoad(requests=requests, context=context)))
            ]
            label = _name_of(report, served) if line == _LINES[0] else None
            at = [row.load.requests for row in rows]
            panel.plot(
                at, [row.tokens_per_s for row in rows], color=_COLOURS[served.name], linestyle=line,
                marker="o", markersize=4, linewidth=1.8, label=label,
            )  # fmt: skip
    for context, line in zip(settings.contexts, _LINES * len(settings.contexts), strict=False):
        panel.plot([], [], color="black", linestyle=line, label=f"context {context}")
    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)
    panel.set_xticks(settings.requests, [str(level) for level in settings.requests])
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.minorticks_off()
    panel.set_xlabel("requests at a time")
    panel.set_ylabel("tokens/s of decoding")
    panel.set_title("as served")
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)


def _name_of(report: TuneReport, served: ServedConfig) -> str:
    gains = [row.gain.median for row in report.closing if row.served == served and row.gain]
    if served == NONE or not gains:
        return served.shown
    printed = ", printed" if served == report.served else ""
    return f"{served.shown} ({min(gains):.2f}x to {max(gains):.2f}x{printed})"
