# SPDX-License-Identifier: Apache-2.0
"""A report on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

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
from vllm_eagle_ext.measure.bench.surface import Point, Surface, surface_of
from vllm_eagle_ext.measure.intervals import Interval

TABLE_WIDTH = 110  # characters
_DRAFT_WIDTH = 18
_MOST_POSITIONS = 16
_MOST_NAMES, _NAME_WIDTH = 8, 12  # of a table; the report has all


def print_report(report: Report, console: Console) -> None:
    for line in about_the_machine(report):
        console.print(line, markup=False)
    width, console.width = console.width, TABLE_WIDTH
    try:  # at full width: a narrow terminal breaks lines, and loses no column
        for table in _tables(report):
            if table.row_count:
                console.print()
                console.print(table, crop=False)
    finally:
        console.width = width
    console.print()
    for line in notes(report):
        console.print(line, markup=False)
    for line in (*recommendation(report), *(f"- {text}" for text in report.advice)):
        console.print(line, markup=False, soft_wrap=True)


def _tables(report: Report) -> Iterator[Table]:
    """Yield the tables of whole texts, then those of --schedule; a report has rows for one kind."""
    for level in report.settings.concurrency:
        yield _speeds(report, level)
    yield _acceptance(report)
    yield _categories(report)
    surface = surface_of(report)
    for context in report.settings.contexts:
        yield _break_even(report, surface, context)
    for context in report.settings.contexts:
        yield _as_served(report, context)


def _speeds(report: Report, level: int) -> Table:
    rows = [row for row in report.of("texts") if row.concurrency == level]
    plain, stock = (any(getattr(row, name) for row in rows) for name in ("speedup", "against_stock"))
    compared = [*["x none"] * plain, *["x stock"] * stock]
    title = f"concurrency {level} (ms; length: acceptance length; step: per decoding step)"
    table = _of_variants(title, "tokens/s", "spread", *compared, "length", "step", "TPOT", "TTFT")
    for row in rows:
        assert row.tokens_per_s is not None
        spread = f"{row.tokens_per_s.relative:.0%}" if row.measured > 1 else "-"
        latencies = (found.mean if found else None for found in (row.tpot_ms, row.ttft_ms))
        table.add_row(
            *_named(report, row.variant),
            f"{row.tokens_per_s.median:.1f}",
            spread,
            *[_interval(row.speedup)] * plain,
            *[_interval(row.against_stock)] * stock,
            *map(_number, (row.acceptance_length, row.step_ms, *latencies)),
        )
    return table


def _acceptance(report: Report) -> Table:
    rows: dict[Variant, list[Row]] = {}
    for row in report.of("texts"):
        if row.variant.k:
            rows.setdefault(row.variant, []).append(row)
    most = min(_MOST_POSITIONS, max((variant.k for variant in rows), default=0))
    title = f"acceptance length, and per position (at most {_MOST_POSITIONS}), all concurrencies"
    table = _of_variants(title, "length", *(str(place + 1) for place in range(most)))
    for variant, own in rows.items():
        drafts, accepted = pooled(own)
        rates = [f"{count / drafts:.2f}" for count in accepted[:most]] if drafts else []
        table.add_row(*_named(report, variant), _number(acceptance_length_of(drafts, accepted)), *rates)
    return table


def _categories(report: Report) -> Table:
    """Make a table of acceptance lengths, with as many categories as a line has room for."""
    rows = [row for row in report.of("texts") if row.length_by_category]
    names = list(dict.fromkeys(name for row in rows for name in row.length_by_category))[:_MOST_NAMES]
    title = f"acceptance length by category of prompt (at most {_MOST_NAMES})"
    table = _of_variants(title, "at a time", *(name[:_NAME_WIDTH] for name in names))
    for row in rows:
        lengths = (_number(row.length_by_category.get(name)) for name in names)
        table.add_row(*_named(report, row.variant), str(row.concurrency), *lengths)
    return table


def _break_even(report: Report, surface: Surface, context: int) -> Table:
    ks = report.settings.ks
    title = f"acceptance length from which K tokens pay: T(K) / T(no draft), context {context}"
    table = _new(title, "requests", "no draft", *(f"K={k}" for k in ks))
    lengths: dict[int, float] = {}
    for requests in report.settings.concurrency:
        load = ServedLoad(concurrency=requests, context=context)
        points = [point for k in ks if (point := surface.get((load, k)))]
        plain = report.row("sweep", PLAIN, load)
        if len(points) == len(ks) and plain and plain.step_ms:
            cells = [f"{point.needed.median:.2f}{_mark(point)}" for point in points]
            table.add_row(str(requests), f"{plain.step_ms:.3g} ms", *cells)
            lengths |= {point.k: point.length for point in points if point.length is not None}
    if lengths:
        table.add_row("measured", "", *(f"{lengths[k]:.2f} " if k in lengths else "" for k in ks))
    return table


def _mark(point: Point) -> str:
    if point.length is None or point.length < point.needed.low or not point.k:
        return " "
    return PAYS if point.length > point.needed.high else UNSURE


def _as_served(report: Report, context: int) -> Table:
    rows = [row for row in report.of("closing") if row.context == context]
    served = [variant for variant in dict.fromkeys(row.variant for row in rows) if variant != PLAIN]
    table = _new(
        f"tokens/s as served, context {context}", "requests", "no draft", *(v.length for v in served)
    )
    for plain in (row for row in rows if row.variant == PLAIN and row.tokens_per_s):
        found = (report.row("closing", variant, plain.load) for variant in served)
        gains = (gain_text(row.speedup) if row and row.speedup else "-" for row in found)
        assert plain.tokens_per_s is not None
        table.add_row(str(plain.concurrency), f"{plain.tokens_per_s.median:.4g}", *gains)
    return table


def _of_variants(title: str, *columns: str) -> Table:
    """Make a table whose first columns name a variant."""
    table = _new(title)
    table.add_column("variant", no_wrap=True)
    table.add_column("draft", max_width=_DRAFT_WIDTH, overflow="fold")
    for name in ("K", *columns):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _named(report: Report, variant: Variant) -> tuple[str, str, str]:
    if variant.draft is None:
        return variant.kind, "", ""
    return variant.kind, labels(report.settings.drafts)[variant.draft], str(variant.k)


def _new(title: str, *columns: str) -> Table:
    table = Table(
        box=None, pad_edge=False, padding=(0, 1, 0, 0), title=title, title_justify="left",
        title_style="",
    )  # fmt: skip
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _interval(gain: Interval | None) -> str:
    if gain is None:
        return ""
    return f"{gain.median:.2f}" + (f" ({gain.low:.2f}-{gain.high:.2f})" if gain.is_interval else "")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"
