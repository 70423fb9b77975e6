# SPDX-License-Identifier: Apache-2.0
"""A bench's rows as pictures, one panel per draft or per concurrency."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_eagle_ext.measure.bench.advice import LEAST_STEPS
from vllm_eagle_ext.measure.bench.plot_style import (
    PARTS,
    drafts_in,
    from_zero,
    label_of,
    legends,
    line_style,
    panels_of,
    shifts,
    some_of,
)
from vllm_eagle_ext.measure.bench.results import Variant
from vllm_eagle_ext.measure.bench.rows import PLAIN, BenchReport, Row, labels, shown_k, variant_name
from vllm_eagle_ext.measure.figure_style import GREY, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(report: BenchReport, folder: Path) -> list[Path]:
    """Draw the plots for which there is something to show."""
    import matplotlib as mpl

    drawn: list[Path] = []
    plots: dict[str, Callable[[BenchReport], Figure | None]] = {
        "speedup": _plot_speedup, "acceptance": _plot_acceptance, "steps": _plot_steps,
        "by_k": _plot_by_k, "context": _plot_context,
    }  # fmt: skip
    with mpl.rc_context(STYLE):
        for name, plot in plots.items():
            path = folder / f"{name}.png"
            path.unlink(missing_ok=True)  # of an earlier state of this bench
            if (figure := plot(report)) is not None:
                figure.savefig(path)
                drawn.append(path)
    return drawn


def _plot_speedup(report: BenchReport) -> Figure | None:
    rows = [row for row in report.rows if row.speedup]
    if not rows:
        return None
    levels = sorted({row.concurrency for row in rows})
    drafts = drafts_in(report, rows)
    figure, panels = panels_of(report, "Speed-up against no draft", len(drafts), sharex=False)
    for panel, draft in zip(panels, drafts, strict=True):
        own = [row for row in rows if row.variant.draft == draft]
        places = shifts((row.variant for row in own), 0.2 if len(levels) > 1 else 0.5)
        for variant, shift in places.items():
            found = [row for row in own if row.variant == variant]
            at = [levels.index(row.concurrency) + shift for row in found]
            _with_intervals(panel, at, found, line_style(report, variant))
        panel.axhline(1, color=GREY, linewidth=1.2, label="no draft")
        panel.set_title(label_of(report, draft))
        if len(levels) > 1:
            panel.set_xticks(range(len(levels)), [str(level) for level in levels])
            panel.set_xlim(-0.5, len(levels) - 0.5)
            panel.set_xlabel("concurrency (requests at a time)")
        else:  # no line to follow: each point is named where it stands
            panel.set_xticks(list(places.values()), [_tick(report, v) for v in places])
            panel.set_xlim(-0.3, 0.3)
            panel.set_xlabel(f"at concurrency {levels[0]}")
    panels[0].set_ylabel("tokens/s / tokens/s without a draft")
    from_zero(panels[0])
    if len(levels) > 1:
        legends(panels)
    return figure


def _tick(report: BenchReport, variant: Variant) -> str:
    return f"{variant.kind}\nK={shown_k(report.settings, variant)}"


def _with_intervals(panel: Axes, at: Sequence[float], rows: Sequence[Row], line: dict[str, Any]) -> None:
    found = [row.speedup for row in rows if row.speedup]
    middle = [one.median for one in found]
    error = [[one.median - one.low for one in found], [one.high - one.median for one in found]]
    panel.errorbar(at, middle, yerr=error, capsize=2.5, **line)


def _plot_acceptance(report: BenchReport) -> Figure | None:
    found = {v: one.acceptance for v, one in report.pooled().items() if v.k and one.acceptance}
    if not found:
        return None
    drafts = drafts_in(report, [row for row in report.rows if row.variant in found])
    figure, panels = panels_of(report, "Acceptance per position", len(drafts), sharex=False)
    for panel, draft in zip(panels, drafts, strict=True):
        own = {variant: rates for variant, rates in found.items() if variant.draft == draft}
        longest = max(len(rates) for rates in own.values())
        for variant, rates in own.items():
            panel.plot(range(1, len(rates) + 1), rates, **line_style(report, variant))
        panel.set_title(label_of(report, draft))
        panel.set_xlim(0.5, longest + 0.5)
        panel.set_xticks(range(1, longest + 1, 1 if longest <= 16 else 2))
        panel.set_xlabel("position of the drafted token")
    panels[0].set_ylabel("share of steps that accept it")
    panels[0].set_ylim(0, 1)
    legends(panels)
    return figure


def _plot_steps(report: BenchReport) -> Figure | None:
    rows = [row for row in report.rows if row.step_ms is not None]
    if not rows:
        return None
    levels = some_of(sorted({row.concurrency for row in rows}))
    names = list(dict.fromkeys(row.variant for row in rows if row.concurrency in levels))
    height = 2.1 + 0.3 * len(names)
    figure, panels = panels_of(report, "Step time", len(levels), height=height, sharex=False)
    for panel, level in zip(panels, levels, strict=True):
        for row in rows:
            if row.concurrency == level:
                _step_bar(panel, names.index(row.variant), row)
        panel.set_title(f"concurrency {level}")
        panel.set_xlabel("ms per step")
        panel.set_xlim(right=1.18 * panel.get_xlim()[1])
        panel.grid(visible=False, axis="y")
    shown = labels(report.settings.drafts)
    panels[0].set_yticks(range(len(names)), [_bar_name(name, shown) for name in names])
    panels[0].set_ylim(len(names) - 0.4, -0.6)
    _step_legend(figure, rows)
    return figure


def _step_bar(panel: Axes, place: int, row: Row) -> None:
    """Draw a bar as long as the step, of its parts, and what the tokens of the step make of it."""
    assert row.step_ms is not None
    left = 0.0
    for name, width in step_parts(row).items():
        hatch: dict[str, Any] = {} if row.split else {"hatch": "///", "edgecolor": "white"}
        panel.barh(place, width, left=left, height=0.7, color=PARTS[name], **hatch)
        left += width
    panel.text(left, place, f" {row.step_ms:.3g}", va="center", fontsize=8)
    if row.acceptance_length and row.variant.k:
        panel.plot(
            row.step_ms / row.acceptance_length, place, marker="|", color="black", markersize=11, mew=2
        )


def step_parts(row: Row) -> dict[str, float]:
    """Milliseconds by part; their sum is the step's.

    Target and draft are measured apart from what is timed, with the device drained around each, so that
    together they can be longer than the step. They then share it in their proportion.
    """
    step_ms = row.step_ms or 0.0
    if row.split is None:
        return {"rest": step_ms}
    parts = {"target": 1000 * row.split.target_s, "draft": 1000 * row.split.draft_s}
    drained = sum(parts.values())
    if drained < step_ms:
        return parts | {"rest": step_ms - drained}
    return {name: width * step_ms / drained for name, width in parts.items()}


def _step_legend(figure: Figure, rows: Sequence[Row]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(color=PARTS["target"], label="target"),
        Patch(color=PARTS["draft"], label="draft"),
        Patch(color=PARTS["rest"], label="rest of the step (scheduling, prompts)"),
    ]
    if any(row.split is None for row in rows):
        handles.append(Patch(facecolor=PARTS["rest"], hatch="///", edgecolor="white", label="not split"))
    style: dict[str, Any] = {"marker": "|", "linestyle": "", "markersize": 11, "markeredgewidth": 2}
    handles.append(Line2D([], [], color="black", label="per token: step / acceptance length", **style))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=len(handles), title_fontsize=9,
        title="bar: the step as timed; target and draft: timed separately, scaled where longer",
    )  # fmt: skip


def _plot_by_k(report: BenchReport) -> Figure | None:
    fixed = [row for row in report.rows if row.variant.kind != "config"]
    rows = [row for row in fixed if row.variant.k and row.tokens_per_s]
    if len({row.variant.k for row in rows}) < 2:
        return None
    levels = some_of(sorted({row.concurrency for row in rows}))
    figure, panels = panels_of(
        report, "Throughput and step time by K", len(levels), rows=2, sharey=False, height=6.0
    )
    for column, level in enumerate(levels):
        above, below = panels[column], panels[len(levels) + column]
        own = [row for row in rows if row.concurrency == level]
        for kind, draft in dict.fromkeys((row.variant.kind, row.variant.draft) for row in own):
            found = [row for row in own if (row.variant.kind, row.variant.draft) == (kind, draft)]
            style = line_style(
                report, Variant(kind=kind, draft=draft, k=max(report.settings.ks)), by_k=True
            )
            spreads = [row.tokens_per_s for row in found if row.tokens_per_s]
            middle = [one.median for one in spreads]
            error = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
            above.errorbar([row.variant.k for row in found], middle, yerr=error, capsize=2.5, **style)
            timed = [row for row in found if row.step_ms is not None]
            below.plot([row.variant.k for row in timed], [row.step_ms or 0 for row in timed], **style)
        _plain_lines(report, level, above, below)
        for panel in (above, below):
            panel.set_xticks(sorted({row.variant.k for row in own}))
            from_zero(panel)
        above.set_title(f"concurrency {level}")
        below.set_xlabel("K (tokens drafted per step)")
    panels[0].set_ylabel("tokens/s")
    panels[len(levels)].set_ylabel("step time, ms")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(5, 3 * len(levels)))
    return figure


def _plain_lines(report: BenchReport, level: int, above: Axes, below: Axes) -> None:
    plain = report.plain(level)
    if plain and plain.tokens_per_s:
        above.axhline(plain.tokens_per_s.median, color=GREY, linewidth=1.2, label="no draft")
    if plain and plain.step_ms:
        below.axhline(plain.step_ms, color=GREY, linewidth=1.2)


def _plot_context(report: BenchReport) -> Figure | None:
    found = {}
    for variant, pooled in report.pooled().items():
        bins = [b for b in pooled.by_context if b.steps >= LEAST_STEPS]
        if variant.k and len(bins) > 1:
            found[variant] = bins
    if not found:
        return None
    drafts = drafts_in(report, [row for row in report.rows if row.variant in found])
    edges = sorted({(part.start, part.end) for bins in found.values() for part in bins})
    figure, panels = panels_of(report, "Acceptance length by context", len(drafts), sharex=False)
    for panel, draft in zip(panels, drafts, strict=True):
        for variant, bins in found.items():
            if variant.draft == draft:
                places = [edges.index((part.start, part.end)) for part in bins]
                lengths = [part.tokens / part.steps for part in bins]
                panel.plot(places, lengths, **line_style(report, variant))
        panel.set_title(label_of(report, draft))
        panel.set_xticks(range(len(edges)), [f"{start}-\n{end}" for start, end in edges], fontsize=8)
        panel.set_xlim(-0.5, len(edges) - 0.5)
        panel.set_xlabel("tokens of context at the step")
    panels[0].set_ylabel("acceptance length (tokens per step)")
    from_zero(panels[0])
    legends(panels)
    return figure


def _bar_name(variant: Variant, shown: dict[str, str]) -> str:
    return "no draft" if variant == PLAIN else variant_name(variant, shown)
