# SPDX-License-Identifier: Apache-2.0
"""A tune's report on a terminal."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from vllm_eagle_ext.measure.engine.machine import BUSY, DISTURBED
from vllm_eagle_ext.measure.intervals import Interval
from vllm_eagle_ext.measure.tune.report import Config, SurfaceRow, TuneReport
from vllm_eagle_ext.measure.tune.results import NONE, ServedLoad
from vllm_eagle_ext.measure.tune.surface import mean_gain

TABLE_WIDTH = 110  # characters
PAYS, UNSURE = "*", "~"
_SHORTER = 0.95  # of a step without a draft: less than noise
_BREAK_EVEN = "acceptance length from which drafting K tokens pays: T(K) / T(no draft)"


def print_tune(report: TuneReport, console: Console) -> None:
    for line in _preamble(report):
        console.print(line, markup=False)
    for context in report.settings.contexts:
        _print(console, f"{_BREAK_EVEN}, context {context}", _surface(report, context))
    for line in _legend(report):
        console.print(line, markup=False)
    if report.closing:
        for context in report.settings.contexts:
            _print(console, f"tokens/s as served, context {context}", _closing(report, context))
        console.print(
            "in brackets: interval of the median over the rounds, and what the sweep predicted",
            markup=False,
        )
    console.print()
    for line in _recommendation(report):
        console.print(line, markup=False, soft_wrap=True)


def _print(console: Console, title: str, table: Table) -> None:
    """A narrow terminal breaks lines, and loses no column."""
    console.print(f"\n{title}", markup=False)
    width, console.width = console.width, TABLE_WIDTH
    console.print(table, crop=False)
    console.width = width


def _preamble(report: TuneReport) -> Iterator[str]:
    settings, context = report.settings, report.context
    versions = ", ".join(f"{name} {version}" for name, version in context.versions.items())
    yield f"{settings.target} with {settings.draft} on {context.device}"
    yield f"{versions}; {context.started}"
    kept = "all engines beside each other" if settings.together else "one engine after the other"
    yield f"{settings.rounds} rounds, {kept}; steps of decoding alone, {settings.steps} of each load"
    busy = context.load_average is not None and context.load_average > BUSY * (context.cores or 1)
    if busy or report.other_cores > DISTURBED * (context.cores or 1):
        yield (
            f"Other work ran on this machine (load average {context.load_average or 0:.1f} before, up "
            f"to {report.other_cores:.1f} cores busy with it): measure again when it is idle."
        )
    drafted = [row for row in report.surface if row.k]
    shorter = [row for row in drafted if row.needed.median < _SHORTER]
    if shorter:
        yield (
            f"TOO NOISY: in {len(shorter)} of {len(drafted)} cases a step that drafts was timed shorter "
            "than one that does not. Nothing below can be relied on."
        )


def _surface(report: TuneReport, context: int) -> Table:
    table = _empty_table(
        "requests", "no draft", *(f"K={k}" for k in report.settings.lengths), "each accepted"
    )
    rows: dict[int, float] = {}
    for requests in report.settings.requests:
        load = ServedLoad(requests=requests, context=context)
        found = [row for k in report.settings.lengths if (row := report.row(load, k))]
        if found:
            cells = [f"{row.needed.median:.2f}{_mark(row)}" for row in found]
            table.add_row(str(requests), f"{found[0].plain_ms:.3g} ms", *cells, _least_rate(found))
            rows |= {row.k: row.length for row in found if row.length is not None}
    if rows:
        table.add_row("measured", "", *(f"{rows[k]:.2f} " for k in report.settings.lengths), "")
    return table


def _mark(row: SurfaceRow) -> str:
    if row.length is None or row.length < row.needed.low or not row.k:
        return " "
    return PAYS if row.length > row.needed.high else UNSURE


def _least_rate(rows: list[SurfaceRow]) -> str:
    """The least acceptance of each position at which some K pays, and that K."""
    found = [(row.needed_rate, row.k) for row in rows if row.k and row.needed_rate is not None]
    if not found:
        return "never"
    rate, k = min(found)
    return f"{rate:.0%} (K={k})"


def _legend(report: TuneReport) -> Iterator[str]:
    yield (
        "each accepted: the least share of accepted tokens, alike at each position, at which some K "
        "pays. K=0: nothing is drafted."
    )
    if report.settings.surface_only:
        yield "Step times alone: this holds for any draft of this shape, also before it is trained."
    else:
        rates = " ".join(f"{rate:.2f}" for rate in report.acceptance)
        yield f"{PAYS} the measured length is above; {UNSURE} within the interval. Per position: {rates}"


def _closing(report: TuneReport, context: int) -> Table:
    table = _empty_table("requests", "no draft", *(one.shown for one in report.compared if one != NONE))
    for requests in report.settings.requests:
        load = ServedLoad(requests=requests, context=context)
        plain = report.closed(NONE, load)
        cells = []
        for served in report.compared:
            row = report.closed(served, load)
            if served != NONE:
                predicted = f"; {row.predicted:.2f}" if row and row.predicted else ""
                cells.append(f"{_gain_text(row.gain, predicted)}" if row and row.gain else "-")
        if plain:
            table.add_row(str(requests), f"{plain.tokens_per_s:.4g}", *cells)
    return table


def _gain_text(gain: Interval, more: str) -> str:
    return f"{gain.median:.2f}x ({gain.low:.2f} to {gain.high:.2f}{more})"


def _recommendation(report: TuneReport) -> Iterator[str]:
    if report.served is None or report.config is None:
        return
    if report.served == NONE:
        yield "No K pays at any load that was measured: serve without a draft."
        for other in report.compared:
            if other != NONE:
                yield f"As served, {other.shown} over no draft: {_range(report, other)}."
        return
    yield from _flag_lines(report, report.config)
    yield f"Over no draft: {_described(report)}."
    for other in report.compared:
        if other not in (NONE, report.served):
            yield f"Beside it, {other.shown}: {_range(report, other)}."
    if report.served.schedule:
        table = ", ".join(f"K={k} for {_span(a, b)}" for a, b, k in report.served.schedule)
        yield f"The schedule: {table}; more requests get the last K."
    for load in report.slower:
        yield f"SLOWER than no draft {_gain_at(report, load)}."
    for load in report.undecided:
        yield f"Slower or not cannot be told {_gain_at(report, load)}. More --rounds narrow it."
    if report.with_zero:
        yield "Less slow there, by the sweep, with K=0:"
        yield from _flag_lines(report, report.with_zero)
    elif report.slower:
        yield (
            "K=0 there would be no faster, by the sweep. Keep such loads off this server, or serve them "
            "without a draft."
        )


def _gain_at(report: TuneReport, load: ServedLoad) -> str:
    """A load, and what the printed config gains there."""
    assert report.served is not None
    row = report.closed(report.served, load)
    assert row is not None
    assert row.gain is not None
    many = f"{load.requests} request{'s' * (load.requests > 1)}"
    return f"with {many} at context {load.context}: {_gain_text(row.gain, '')}"


def _flag_lines(report: TuneReport, config: Config) -> Iterator[str]:
    if config.speculative_config is None:
        yield "  no --speculative-config: no draft"
        return
    words = ["--speculative-config", json.dumps(config.speculative_config)]
    if config.additional_config:
        words += ["--additional-config", json.dumps(config.additional_config)]
    if report.settings.engine.get("enable_prefix_caching") is False:
        words.append("--no-enable-prefix-caching")
    yield "  " + shlex.join(words)


def _described(report: TuneReport) -> str:
    assert report.served is not None
    return (
        f"{_range(report, report.served)}, measured with this config in {report.settings.rounds} rounds"
    )


def _range(report: TuneReport, served: object) -> str:
    rows = [row for row in report.closing if row.served == served and row.gain]
    gains = [row.gain.median for row in rows if row.gain]
    mean = f"{mean_gain(gains):.2f}x in the mean over {len(gains)} loads"
    return f"{min(gains):.2f}x to {max(gains):.2f}x, {mean}"


def _span(first: int, last: int) -> str:
    named = f"{first}" if first == last else f"{first} to {last}"
    return f"{named} request{'s' * (last > 1)}"


def _empty_table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table
