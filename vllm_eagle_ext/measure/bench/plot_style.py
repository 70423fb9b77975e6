# SPDX-License-Identifier: Apache-2.0
"""How a bench's plots look: panels, and one colour per draft in all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from vllm_eagle_ext.measure.bench.results import Variant
from vllm_eagle_ext.measure.bench.rows import BenchReport, Row, labels, shown_k
from vllm_eagle_ext.measure.figure_style import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PARTS = {"target": "#4C78A8", "draft": "#F58518", "rest": "#C7C7C7"}
_MARKERS, _CONFIG = "osD^vPX", "*"
_MOST_PANELS = 4


def panels_of(
    report: BenchReport,
    title: str,
    columns: int,
    *,
    rows: int = 1,
    height: float = 4.8,
    sharex: bool = True,
    sharey: bool = True,
) -> tuple[Figure, list[Axes]]:
    width = 7.0 if columns == 1 else min(16.0, 4.6 * columns)
    target = labels([report.settings.target])[report.settings.target]
    figure = new_figure(f"{title}: {target}", report.context.device, width=width, height=height)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey)
    return figure, list(axes.flat)


def drafts_in(report: BenchReport, rows: Sequence[Row]) -> list[str]:
    return [draft for draft in report.settings.drafts if any(r.variant.draft == draft for r in rows)]


def label_of(report: BenchReport, draft: str) -> str:
    return labels(report.settings.drafts)[draft]


def line_style(report: BenchReport, variant: Variant, by_k: bool = False) -> dict[str, Any]:
    """Draw ours solid, stock dashed with hollow marks, a config with stars; the colour names the draft,
    its depth the K."""
    ks, drafts = report.settings.ks, report.settings.drafts
    place = ks.index(variant.k) if variant.k in ks else 0
    drafted = drafts.index(str(variant.draft)) if variant.draft in drafts else 0
    depth = 1.0 if by_k else 0.45 + 0.55 * (place + 1) / len(ks)
    color = _lighter(COLOURS[drafted % len(COLOURS)], depth)
    ours, config = variant.has_plugin, variant.kind == "config"
    named = label_of(report, str(variant.draft)) if by_k else f"K={shown_k(report.settings, variant)}"
    return {
        "color": color,
        "label": f"{variant.kind} {named}",
        "linestyle": "-." if config else "-" if ours else "--",
        "linewidth": 1.6,
        "marker": _CONFIG if config else _MARKERS[(drafted if by_k else place) % len(_MARKERS)],
        "markersize": 4.5 if ours else 7.5,
        "markerfacecolor": color if ours else "none",
    }


def _lighter(color: str, depth: float) -> tuple[float, ...]:
    from matplotlib.colors import to_rgb

    return tuple(1 - depth * (1 - part) for part in to_rgb(color))


def shifts(variants: Iterable[Variant], width: float) -> dict[Variant, float]:
    """Puts points beside each other that would lie on each other."""
    order = list(dict.fromkeys(variants))
    return {v: width * ((place + 0.5) / len(order) - 0.5) for place, v in enumerate(order)}


def legends(panels: Sequence[Axes]) -> None:
    """Put the legends below, where nothing is drawn."""
    for panel in panels:
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=3)


def from_zero(panel: Axes) -> None:
    panel.set_ylim(0, 1.06 * panel.get_ylim()[1])


def some_of(levels: Sequence[int]) -> list[int]:
    """Pick at most _MOST_PANELS of them, the first and the last included."""
    last = min(len(levels), _MOST_PANELS) - 1
    places = [round(number * (len(levels) - 1) / last) for number in range(last + 1)] if last else [0]
    return [levels[place] for place in places]
