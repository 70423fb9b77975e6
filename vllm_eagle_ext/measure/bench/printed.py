# SPDX-License-Identifier: Apache-2.0
"""A report on a terminal: its tables, and what is measured, what failed, what to do and to serve."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.table import Table

from vllm_eagle_ext.measure.bench.results import (
    COVERAGE,
    PLAIN,
    Context,
    Interval,
    Report,
    Row,
    ServedLoad,
    Settings,
    Variant,
    labels,
)
from vllm_eagle_ext.measure.bench.summary import (
    Point,
    Surface,
    acceptance_length_of,
    gain_over_loads,
    pooled,
    surface_of,
)
from vllm_eagle_ext.measure.engine.machine import BUSY, DISTURBED
from vllm_eagle_ext.printable import shell_line
from vllm_eagle_ext.start.failed_start import cause_of

PAYS, UNSURE = "*", "~"
_SHORTER = 0.95  # of a step without a draft: less than noise
_REASON_WIDTH = 200
TABLE_WIDTH = 110  # characters
_DRAFT_WIDTH = 18
_MOST_POSITIONS = 16


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
    table = _of_variants(title, "tokens/s", "spread", *compared, "length", "step")
    for row in rows:
        assert row.tokens_per_s is not None
        spread = f"{row.tokens_per_s.relative:.0%}" if row.measured > 1 else "-"
        table.add_row(
            *_named(report, row.variant),
            f"{row.tokens_per_s.median:.1f}",
            spread,
            *[_interval(row.speedup)] * plain,
            *[_interval(row.against_stock)] * stock,
            *map(_number, (row.acceptance_length, row.step_ms)),
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
        others = (report.row("closing", variant, plain.load) for variant in served)
        gains = (gain_text(row.speedup) if row and row.speedup else "-" for row in others)
        assert plain.tokens_per_s is not None
        table.add_row(str(plain.concurrency), f"{plain.tokens_per_s.median:.4g}", *gains)
    return table


def _of_variants(title: str, *columns: str) -> Table:
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


def premises(settings: Settings, context: Context) -> Iterator[str]:
    """Say what is measured, on what and how."""
    versions = ", ".join(f"{name} {version}" for name, version in context.versions.items())
    drafts = f" with {', '.join(settings.drafts)}" if settings.drafts else ""
    yield f"{settings.target}{drafts} on {context.device}"
    yield f"{versions}; {context.started}"
    thinking = {None: "as the template has it", True: "on", False: "off"}[settings.thinking]
    template = f"chat template on, thinking {thinking}" if settings.chat_template else "no chat template"
    measured = f"at most {settings.max_tokens} tokens"
    if settings.steps:
        lengths = ", ".join(map(str, settings.ks))
        measured = f"K of {lengths} and only steps of decoding, {settings.steps} of each load"
    yield (
        f"{settings.num_prompts} prompts ({settings.prompts}), {template}; {measured}, "
        f"temperature {settings.temperature:g}, seed {settings.seed}"
    )
    kept = "all kept at the same time" if settings.together else "one at a time"
    yield f"engines of each kind: {settings.repeats}, {kept}; rounds at each load: {settings.rounds}"
    if settings.dummy:
        yield "Dummy weights: times are real, texts and acceptance are not."
    if settings.synthetic_acceptance is not None:
        yield f"Synthetic acceptance {settings.synthetic_acceptance}: drafts are accepted by lot."


def about_the_machine(report: Report) -> Iterator[str]:
    """Say whether the times can be trusted."""
    context = report.context
    cores, load = context.cores or 1, context.load_average
    others = max((row.other_cores or 0.0 for row in report.rows), default=0.0)
    if load is not None:
        yield f"load average {load:.2f} on {cores} cores before the first engine"
    if (load or 0.0) > BUSY * cores or others > DISTURBED * cores:
        yield (
            f"Other work ran on this machine (load average {load or 0:.1f} before, up to {others:.1f} "
            "cores busy with it): measure again when it is idle before you trust a time."
        )
    points = [point for point in surface_of(report).values() if point.k]
    if shorter := [point for point in points if point.needed.median < _SHORTER]:
        yield (
            f"TOO NOISY: in {len(shorter)} of {len(points)} cases a step that drafts was timed shorter "
            "than one that does not. Nothing below can be relied on."
        )


def notes(report: Report) -> Iterator[str]:
    """Say how to read the numbers, and what is missing of them."""
    # What the intervals are, in one line per number of pairs, most often one.
    ratios = [ratio for row in report.rows for ratio in (row.speedup, row.against_stock) if ratio]
    for pairs, coverage in sorted({(ratio.pairs, ratio.coverage) for ratio in ratios}):
        what = f"their {coverage:.0%} interval" if coverage >= COVERAGE else "their range"
        yield f"ratios: median of {pairs} pairs ({what})." if pairs > 1 else "ratios: of one pair."
    if report.of("sweep") and not report.settings.surface_only:
        yield f"{PAYS} the measured length is above; {UNSURE} within the interval."
    # What failed, or was not measured to the end.
    failed: dict[str, list[Row]] = {}
    for row in report.rows:
        if row.error:
            failed.setdefault(reason(row.error), []).append(row)
    for text, rows in failed.items():
        what = "failed on the way" if any(row.measured for row in rows) else "not served"
        yield f"{what}: {_names(report, (row.variant for row in rows))}: {text}"
    runs = report.settings.runs
    if cut := [row.variant for row in report.rows if row.measured < runs and not row.error]:
        yield f"interrupted, with fewer than {runs} measurements: {_names(report, cut)}."


def _names(report: Report, variants: Iterable[Variant]) -> str:
    shown = labels(report.settings.drafts)
    drafts = {variant: shown.get(str(variant.draft)) for variant in variants}
    return ", ".join(v.model_copy(update={"draft": draft}).name for v, draft in drafts.items())


def reason(error: str) -> str:
    """Return one line: the engine's own error, or the last of its log where it points elsewhere."""
    first, *log = [line.strip() for line in error.splitlines() if line.strip()] or ["no message"]
    text, _ = cause_of(first, log)
    return text if len(text) <= _REASON_WIDTH else f"{text[:_REASON_WIDTH]} .."


def advice(report: Report) -> list[str]:
    """Say of whole texts which K to serve with, and what not to trust."""
    lines = list(_best(report))
    compared = [row for row in report.rows if row.same_texts is not None]
    if other := [row for row in compared if not row.same_texts]:
        lines.append(
            f"texts differ from those without a draft in {len(other)} of {len(compared)} rows "
            f"({_names(report, (row.variant for row in other))}): `vllm-eagle verify` tells near-ties "
            "from faults."
        )
    return lines


def _best(report: Report) -> Iterator[str]:
    kind = "ours" if "ours" in report.settings.kinds else "stock"
    rows = [row for row in report.of("texts") if row.variant.kind == kind and row.speedup]
    drafts = list(dict.fromkeys(str(row.variant.draft) for row in rows))
    for draft in drafts:
        named = f"{labels(drafts)[draft]}: " if len(drafts) > 1 else ""
        for level in report.settings.concurrency:
            own = [row for row in rows if (row.variant.draft, row.concurrency) == (draft, level)]
            # An acceptance length that was set is that of every K, and makes none the best.
            is_set = (report.settings.synthetic_acceptance or [0])[0] > 1
            for judged in ([row] for row in own) if is_set else [own]:
                if judged:
                    yield f"{named}at concurrency {level} {_verdict_on_k(judged)}."


def _verdict_on_k(rows: Sequence[Row]) -> str:
    """Say which K to serve with, from the rows of one draft at one concurrency, one per K."""
    judged = [(row.speedup, row.variant.k) for row in rows if row.speedup]
    # A gain that is sure goes before a larger median.
    sure = [pair for pair in judged if pair[0].low > 1]
    gain, k = max(sure or judged, key=lambda pair: pair[0].median)
    best = f"{'the best is ' if len(judged) > 1 else ''}K={k}, {gain_text(gain)} of no draft"
    if gain.low > 1:
        alike = [f"K={other}" for near, other in judged if other != k and near.overlaps(gain)]
        return f"{best}; within its interval: {', '.join(alike)}" if gain.pairs > 1 and alike else best
    return f"no draft is faster; {best}" if gain.high < 1 else f"no difference is seen; {best}"


def recommendation(report: Report) -> Iterator[str]:
    """Say what to serve with, from the closing round; nothing of a report without a choice."""
    choice = report.choice
    if choice is None:
        return
    # The config that was chosen, its gain, and that of the others.
    if choice.served == PLAIN:
        yield "No K pays at any load that was measured: serve without a draft."
    else:
        words = ["--speculative-config", json.dumps(choice.config.speculative_config)]
        if choice.config.additional_config:
            words += ["--additional-config", json.dumps(choice.config.additional_config)]
        if report.settings.engine.get("enable_prefix_caching") is False:
            words.append("--no-enable-prefix-caching")
        yield f"  {shell_line(words)}"
    for served in dict.fromkeys([choice.served, *(row.variant for row in report.of("closing"))]):
        if served != PLAIN:
            gain = gain_over_loads(report, served)
            mean = gain_text(gain) if gain else "not measured"
            yield f"Over no draft in the mean over all loads, {served.length}: {mean}."
    if choice.served.schedule:
        spans = ", ".join(f"K={k} for {a} to {b} requests" for a, b, k in choice.served.schedule)
        yield f"The schedule: {spans}; more requests get the last K."
    # Where it is slower than no draft.
    for load in (*choice.slower, *choice.undecided):
        row = report.row("closing", choice.served, load)
        measured = gain_text(row.speedup) if row and row.speedup else "not measured"
        at = f"with {load.concurrency} at a time at context {load.context}: {measured}"
        is_sure = load in choice.slower
        yield f"SLOWER than no draft {at}." if is_sure else f"Undecided {at}; more --rounds tell."


def gain_text(gain: Interval) -> str:
    """Give a gain with its interval; one measurement has none."""
    return f"{gain.median:.2f}x" + (f" ({gain.low:.2f} to {gain.high:.2f})" if gain.is_interval else "")
