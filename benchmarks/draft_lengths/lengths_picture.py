# SPDX-License-Identifier: Apache-2.0
"""One pair's result as a picture: tokens/s over requests, and over no draft below it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.draft_lengths.lengths_result import AUTO, LengthsResult
from benchmarks.draft_lengths.load_summary import LoadSummary, summary_of
from vllm_eagle_ext.measure.figure_style import COLOURS, GREY, STYLE, new_figure
from vllm_eagle_ext.measure.intervals import Interval
from vllm_eagle_ext.measure.tune.results import NONE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Of these lines or bars, from left to right: name, colour, which figure of a load.
Shown = tuple[str, str, Callable[[LoadSummary], Interval]]
_BESIDE = 0.035  # lines apart, so that their intervals do not lie on each other; a factor of requests


def draw_lengths(result: LengthsResult, path: Path) -> Path:
    """Draw a panel per context and one of the ramp, each as tokens/s and as a ratio."""
    import matplotlib as mpl

    settings = result.settings
    with mpl.rc_context(STYLE):
        steady = [
            [found for found in _summaries(result) if found.load.context == context]
            for context in settings.contexts
        ]
        steady = [[found for found in panel if not found.load.ramp] for panel in steady]
        ramps = [found for found in _summaries(result) if found.load.ramp]
        panels = len(steady) + len(ramps)
        figure = new_figure(
            f'draft_length "auto": the tiny {settings.pair} pair, K up to {settings.k}',
            _measured(result),
            width=3.4 * len(steady) + 2.6 * len(ramps) + 0.8, height=6.6,
        )  # fmt: skip
        widths = [3.4] * len(steady) + [2.6] * len(ramps)
        above, below = figure.subplots(2, panels, squeeze=False, width_ratios=widths, sharex="col")
        for found, rate, ratio, context in zip(steady, above, below, settings.contexts, strict=False):
            _draw_lines(found, rate, _rates(settings.k))
            _draw_lines(found, ratio, _ratios(settings.k))
            rate.set_title(f"context {context}")
            _set_requests(rate, ratio, settings.requests)
        for found, rate, ratio in zip(ramps, above[len(steady) :], below[len(steady) :], strict=True):
            _draw_bars(found, rate, _rates(settings.k))
            _draw_bars(found, ratio, _ratios(settings.k))
            rate.set_title(f"ramp {found.load.shown}, context {found.load.context}")
        above[0].set_ylabel("tokens per CPU-second of decoding")
        below[0].set_ylabel("over no draft")
        for panel in below:
            panel.axhline(1, color=GREY, linewidth=1.8, zorder=1)
        _same_range(above[: len(steady)])
        _same_range(below)
        handles, names = above[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names))
        figure.savefig(path)
    return path


def _measured(result: LengthsResult) -> str:
    settings = result.settings
    texts = f"{settings.sampled:.0%} of the requests sampled" if settings.sampled else "greedy texts"
    return (
        f"{result.machine['processor']}, {result.cores} cores; {texts}; "
        f"intervals of the median over {settings.starts} starts"
    )


def _summaries(result: LengthsResult) -> list[LoadSummary]:
    return [summary_of(result, load, "cpu") for load in result.settings.loads]


def _rates(k: int) -> list[Shown]:
    return [
        ("no draft", GREY, lambda found: found.rates[NONE]),
        ("best fixed K", COLOURS[0], lambda found: found.best_rate),
        (f"K={k}", COLOURS[2], lambda found: found.rates[found.full]),
        ('draft_length "auto"', COLOURS[1], lambda found: found.rates[AUTO]),
    ]


def _ratios(k: int) -> list[Shown]:
    """As the rates, over no draft."""
    best, full, auto = _rates(k)[1:]
    return [
        (*best[:2], lambda found: found.best_over_none),
        (*full[:2], lambda found: found.over_none[found.full]),
        (*auto[:2], lambda found: found.over_none[AUTO]),
    ]


def _draw_lines(loads: Sequence[LoadSummary], panel: Axes, shown: Sequence[Shown]) -> None:
    for place, (name, colour, figure) in enumerate(shown):
        found = [figure(load) for load in loads]
        beside = (1 + _BESIDE) ** (place - (len(shown) - 1) / 2)
        panel.errorbar(
            [load.load.requests * beside for load in loads], [one.median for one in found],
            yerr=_error(found), label=name, color=colour, marker="o", markersize=4, linewidth=1.6,
            elinewidth=1.2, capsize=2.5,
        )  # fmt: skip


def _draw_bars(load: LoadSummary, panel: Axes, shown: Sequence[Shown]) -> None:
    found = [figure(load) for _, _, figure in shown]
    colours = [colour for _, colour, _ in shown]
    # The bars of the ratios stand below those of the rates, which have one more: no draft.
    places = range(1 - len(shown) + 3, 4)
    panel.bar(places, [one.median for one in found], color=colours, width=0.7)
    panel.errorbar(
        places, [one.median for one in found], yerr=_error(found), fmt="none", ecolor="black", capsize=3
    )
    for place, one in zip(places, found, strict=True):
        text = f"{one.median:.0f}" if one.median > 20 else f"{one.median:.2f}"
        panel.annotate(text, (place, one.high), xytext=(0, 3), textcoords="offset points", ha="center")
    panel.set_xticks([])
    panel.margins(y=0.12)


def _error(found: Sequence[Interval]) -> list[list[float]]:
    return [[one.median - one.low for one in found], [one.high - one.median for one in found]]


def _set_requests(rate: Axes, ratio: Axes, requests: Sequence[int]) -> None:
    for panel in (rate, ratio):
        panel.set_xscale("log", base=2)
        panel.set_xticks(requests, [str(level) for level in requests])
    rate.set_yscale("log", base=2)
    rate.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    rate.minorticks_off()
    ratio.set_xlabel("requests at a time")


def _same_range(panels: Sequence[Axes]) -> None:
    """From the lowest to the highest figure of all; ratios from 0."""
    low, high = zip(*(panel.get_ylim() for panel in panels), strict=True)
    for panel in panels:
        panel.set_ylim(min(low) if panel.get_yscale() == "log" else 0, max(high))
