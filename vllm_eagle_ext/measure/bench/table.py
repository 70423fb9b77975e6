# SPDX-License-Identifier: Apache-2.0
"""A report on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table

from vllm_eagle_ext.measure.bench.notes import (
    PAYS,
    UNSURE,
    about_the_machine,
    gain_text,
    notes,
    recommendation,
)
from vllm_eagle_ext.measure.bench.results import PLAIN, Report, Row, ServedLoad, Variant, labels
from vllm_eagle_ext.measure.bench.summary import acceptance_length_of, pooled
from vllm_eagle_ext.measure.bench.surface import (
    Point,
    Surface,
    predicted_gain,
    surface_of,
)
from vllm_eagle_ext.measure.intervals import Interval

TABLE_WIDTH = 110  # characters
_DRAFT_WIDTH = 18
_MOST_POSITIONS = 16
_MOST_NAMES, _NAME_WIDTH = 8, 12  # of a table; the report has all


def print_report(report: Report, console: Console) -> None:
    for line in about_the_machine(report):
        console.print(line, markup=False)
    for title, table in _tables(report):
        if table.row_count:
            console.print()
            console.print(title, markup=False)
            _print_wide(table, console)
    console.print()
    for line in notes(report):
        console.print(line, markup=False)
    if report.choice:
        console.print()
    for line in recommendation(report):
        console.print(line, markup=False, soft_wrap=True)
    for text in report.advice:
        console.print(f"- {text}", markup=False)


def _tables(report: Report) -> Iterator[tuple[str, Table]]:
    if report.settings.command == "bench":
        for level in report.settings.concurrency:
            explained = "length: acceptance length; step: per decoding step, about TPOT x length"
            yield f"concurrency {level} (ms; {explained})", _variant_table(report, level)
        most = max(report.settings.ks, default=0)
        first = f" (the first {_MOST_POSITIONS})" if most > _MOST_POSITIONS else ""
        yield f"acceptance length, and per position{first}, all concurrencies", _acceptance(report)
        yield "requests by their acceptance length, of all runs", _spread(report, "requests_by_length")
        by_category = f"acceptance length by category of prompt (at most {_MOST_NAMES})"
        yield by_category, _spread(report, "length_by_category")
        return
    surface = surface_of(report)
    for context in report.settings.contexts:
        title = "acceptance length from which drafting K tokens pays: T(K) / T(no draft)"
        yield f"{title}, context {context}", _surface_table(report, surface, context)
    for context in report.settings.contexts:
        yield f"tokens/s as served, context {context}", _closing_table(report, surface, context)


def _print_wide(table: Table, console: Console) -> None:
    """Print a table at full width: a narrow terminal breaks lines, and loses no column."""
    width = console.width
    console.width = TABLE_WIDTH
    console.print(table, crop=False)
    console.width = width


def _variant_table(report: Report, level: int) -> Table:
    rows = [row for row in report.of("texts") if row.concurrency == level]
    plain, stock = (any(getattr(row, name) for row in rows) for name in ("speedup", "against_stock"))
    columns = ["tokens/s", "spread", *["x none"] * plain, *["x stock"] * stock]
    table = _of_variants(*columns, "length", "step", "in draft", "TPOT", "TTFT")
    for row in rows:
        assert row.tokens_per_s is not None
        spread = _share(row.tokens_per_s.relative) if row.measured > 1 else "-"
        cells = [f"{row.tokens_per_s.median:.1f}", spread]
        cells += [_interval(row.speedup)] * plain + [_interval(row.against_stock)] * stock
        cells += [_number(row.acceptance_length), _number(row.step_ms), _share(row.draft_share)]
        cells += [_number(found.mean if found else None) for found in (row.tpot_ms, row.ttft_ms)]
        table.add_row(*_named(report, row.variant), *cells)
    return table


def _acceptance(report: Report) -> Table:
    rows: dict[Variant, list[Row]] = {}
    for row in report.of("texts"):
        if row.variant.k:
            rows.setdefault(row.variant, []).append(row)
    most = min(_MOST_POSITIONS, max((variant.k for variant in rows), default=0))
    table = _of_variants("length", *(str(place + 1) for place in range(most)))
    for variant, own in rows.items():
        drafts, accepted = pooled(own)
        rates = [f"{count / drafts:.2f}" for count in accepted[:most]] if drafts else []
        length = _number(acceptance_length_of(drafts, accepted))
        table.add_row(*_named(report, variant), length, *rates, *[""] * (most - len(rates)))
    return table


def _spread(report: Report, field: Literal["requests_by_length", "length_by_category"]) -> Table:
    """Make a table of what a row has by name, of as many names as a line has room for."""
    found = [(row, getattr(row, field)) for row in report.of("texts")]
    names = list(dict.fromkeys(name for _, own in found for name in own))[:_MOST_NAMES]
    table = _of_variants("at a time", *(name[:_NAME_WIDTH] for name in names))
    for row, own in (one for one in found if one[1]):
        cells = (f"{own[name]:.3g}" if name in own else "" for name in names)
        table.add_row(*_named(report, row.variant), str(row.concurrency), *cells)
    return table


def _surface_table(report: Report, surface: Surface, context: int) -> Table:
    ks = report.settings.ks
    table = _new("requests", "no draft", *(f"K={k}" for k in ks), "each accepted")
    lengths: dict[int, float] = {}
    for requests in report.settings.concurrency:
        load = ServedLoad(concurrency=requests, context=context)
        found = [point for k in ks if (point := surface.get((load, k)))]
        plain = report.row("sweep", PLAIN, load)
        if len(found) == len(ks) and plain and plain.step_ms:
            cells = [f"{point.needed.median:.2f}{_mark(point)}" for point in found]
            table.add_row(str(requests), f"{plain.step_ms:.3g} ms", *cells, _least_rate(found))
            lengths |= {point.k: point.length for point in found if point.length is not None}
    if lengths:
        table.add_row("measured", "", *(f"{lengths[k]:.2f} " if k in lengths else "" for k in ks), "")
    return table


def _mark(point: Point) -> str:
    if point.length is None or point.length < point.needed.low or not point.k:
        return " "
    return PAYS if point.length > point.needed.high else UNSURE


def _least_rate(points: Sequence[Point]) -> str:
    """Return the least acceptance of each position at which some K pays, and that K."""
    found = [(one.needed_rate, one.k) for one in points if one.k and one.needed_rate is not None]
    if not found:
        return "never"
    rate, k = min(found)
    return f"{rate:.0%} (K={k})"


def _closing_table(report: Report, surface: Surface, context: int) -> Table:
    rows = [row for row in report.of("closing") if row.context == context]
    served = [one for one in dict.fromkeys(row.variant for row in rows) if one != PLAIN]
    table = _new("requests", "no draft", *(one.length for one in served))
    for plain in (row for row in rows if row.variant == PLAIN and row.tokens_per_s):
        cells = []
        for variant in served:
            row = report.row("closing", variant, plain.load)
            predicted = predicted_gain(surface, row) if row else None
            more = f"; {predicted:.2f}" if predicted else ""
            cells.append(gain_text(row.speedup, more) if row and row.speedup else "-")
        assert plain.tokens_per_s is not None
        table.add_row(str(plain.concurrency), f"{plain.tokens_per_s.median:.4g}", *cells)
    return table


def _of_variants(*columns: str) -> Table:
    """Make a table whose first columns name a variant."""
    table = _new()
    table.add_column("variant", no_wrap=True)
    table.add_column("draft", max_width=_DRAFT_WIDTH, overflow="fold")
    for name in ("K", *columns):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _named(report: Report, variant: Variant) -> tuple[str, str, str]:
    if variant.draft is None:
        return variant.kind, "", ""
    return variant.kind, labels(report.settings.drafts)[variant.draft], str(variant.k)


def _new(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _interval(found: Interval | None) -> str:
    if found is None:
        return ""
    if not found.is_interval:
        return f"{found.median:.2f}"
    return f"{found.median:.2f} ({found.low:.2f}-{found.high:.2f})"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
