# SPDX-License-Identifier: Apache-2.0
"""A bench's rows on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from vllm_eagle_ext.failure_causes import cause_of
from vllm_eagle_ext.measure.bench.advice import LEAST_STEPS
from vllm_eagle_ext.measure.bench.results import Variant
from vllm_eagle_ext.measure.bench.rows import BenchReport, labels, shown_k, variant_name
from vllm_eagle_ext.measure.intervals import COVERAGE, Interval

TABLE_WIDTH = 110  # characters
_DRAFT_WIDTH = 18
_REASON_WIDTH = 200
_MOST_POSITIONS = 16
_MOST_NAMED = 6
_T = TypeVar("_T")


def print_bench(report: BenchReport, console: Console) -> None:
    for line in _bench_premises(report):
        console.print(line, markup=False)
    for title, table in _bench_tables(report):
        if table.row_count:
            console.print(f"\n{title}", markup=False)
            _print_wide(table, console)
    console.print()
    for line in _notes(report):
        console.print(line, markup=False)
    for text in report.advice:
        console.print(f"- {text}", markup=False)


def _bench_tables(report: BenchReport) -> Iterator[tuple[str, Table]]:
    for level in sorted({row.concurrency for row in report.rows}):
        explained = "length: acceptance length; step: per decoding step, about TPOT x length"
        yield f"concurrency {level} (ms; {explained})", _main_table(report, level)
    first = (
        f" (the first {_MOST_POSITIONS})" if max(report.settings.ks, default=0) > _MOST_POSITIONS else ""
    )
    yield f"acceptance length, and per position{first}, all concurrencies", _acceptance_table(report)
    context = f"acceptance length by tokens of context; in brackets: fewer than {LEAST_STEPS} steps"
    yield context, _context_table(report)
    yield "speed-up against no draft: theory beside measurement", _theory_table(report)


def _print_wide(table: Table, console: Console) -> None:
    """A narrow terminal breaks lines, and loses no column."""
    width = console.width
    console.width = TABLE_WIDTH
    console.print(table, crop=False)
    console.width = width


def _bench_premises(report: BenchReport) -> Iterator[str]:
    settings, context = report.settings, report.context
    versions = ", ".join(f"{name} {version}" for name, version in context.versions.items())
    yield f"{settings.target} on {context.device}"
    yield f"{versions}; {context.started}"
    thinking = {None: "as the template has it", True: "on", False: "off"}[settings.thinking]
    template = f"chat template on, thinking {thinking}"
    yield (
        f"{settings.num_prompts} prompts ({settings.prompts}), "
        f"{template if settings.chat_template else 'no chat template'}; at most {settings.max_tokens} "
        f"tokens, temperature {settings.temperature:g}, seed {settings.seed}"
    )
    kept = "all kept beside each other" if settings.together else "one at a time"
    yield (
        f"{_counted(settings.repeats, 'engine')} of each kind, {kept}; "
        f"{_counted(settings.rounds, 'round')} at each concurrency"
    )
    yield from _of_the_machine(report)
    if settings.dummy:
        yield "Dummy weights: times are real, texts and acceptance are not."
    if settings.synthetic_acceptance is not None:
        yield f"Synthetic acceptance {settings.synthetic_acceptance}: drafts are accepted by lot."


def _of_the_machine(report: BenchReport) -> Iterator[str]:
    context = report.context
    if context.load_average is not None and context.cores:
        yield f"load average {context.load_average:.2f} on {context.cores} cores before the first engine"
    if chosen := {one.gpu_memory_utilization for one in report.engines} - {None}:
        shares = ", ".join(f"{share:.2f}" for share in sorted(filter(None, chosen)))
        yield f"gpu_memory_utilization {shares}, chosen by what was free"


def _new(*columns: str) -> Table:
    """The first columns name a variant."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("variant", no_wrap=True)
    table.add_column("draft", max_width=_DRAFT_WIDTH, overflow="fold")
    table.add_column("K", justify="right", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _cells_of(report: BenchReport, variant: Variant) -> tuple[str, str, str]:
    if variant.draft is None:
        return variant.kind, "", ""
    return variant.kind, _label(report, variant.draft), shown_k(report.settings, variant)


def _label(report: BenchReport, draft: str) -> str:
    return labels(report.settings.drafts).get(draft, draft)


def _main_table(report: BenchReport, level: int) -> Table:
    rows = [row for row in report.rows if row.concurrency == level and row.measured]
    plain, stock = (any(getattr(row, name) for row in rows) for name in ("speedup", "against_stock"))
    columns = ["tokens/s", "spread", *["x none"] * plain, *["x stock"] * stock]
    columns += ["length", "step", "in draft", "TPOT", "TTFT"]
    table = _new(*columns)
    for row in rows:
        assert row.tokens_per_s is not None
        spread = _share(row.tokens_per_s.relative) if row.measured > 1 else "-"
        cells = [f"{row.tokens_per_s.median:.1f}", spread]
        cells += [_interval(row.speedup)] * plain + [_interval(row.against_stock)] * stock
        cells += [_number(row.acceptance_length), _number(row.step_ms), _share(row.draft_share)]
        cells += [_number(found.mean if found else None) for found in (row.tpot_ms, row.ttft_ms)]
        table.add_row(*_cells_of(report, row.variant), *cells)
    return table


def _acceptance_table(report: BenchReport) -> Table:
    found = {v: one for v, one in report.pooled().items() if v.k}
    most = min(_MOST_POSITIONS, max((len(one.acceptance) for one in found.values()), default=0))
    places = [str(place + 1) for place in range(most)]
    table = _new("length", *places)
    for variant, one in found.items():
        rates = [f"{rate:.2f}" for rate in one.acceptance[:most]]
        rates += [""] * (most - len(rates))
        table.add_row(*_cells_of(report, variant), _number(one.acceptance_length), *rates)
    return table


def _context_table(report: BenchReport) -> Table:
    """Empty where all steps lie in one bin."""
    found = {v: one.by_context for v, one in report.pooled().items() if v.k}
    edges = sorted({(part.start, part.end) for bins in found.values() for part in bins})
    table = _new(*(f"<{end}" for _, end in edges))
    for variant, bins in found.items() if len(edges) > 1 else ():
        by_edge = {(part.start, part.end): part for part in bins}
        cells = []
        for edge in edges:
            part = by_edge.get(edge)
            text = f"{part.tokens / part.steps:.2f}" if part and part.steps else ""
            cells.append(f"({text})" if part and text and part.steps < LEAST_STEPS else text)
        table.add_row(*_cells_of(report, variant), *cells)
    return table


def _theory_table(report: BenchReport) -> Table:
    columns = ("conc.", "expected", "measured", "byte bound", "worker ms", "bytes ms", "of bytes")
    table = _new(*columns)
    table.add_column("most bytes", overflow="fold")
    for row in report.rows:
        if (theory := row.theory) is None:
            continue
        cells = [str(row.concurrency), _times(theory.expected_speedup)]
        cells += [_times(row.speedup.median if row.speedup else None), _times(theory.bound_speedup)]
        worker_s = row.split.target_s + row.split.draft_s if row.split else None
        cells += [_number(1000 * worker_s if worker_s else None), _number(1000 * theory.bound_step_s)]
        cells.append(_share(theory.of_bound))
        table.add_row(*_cells_of(report, row.variant), *cells, theory.limit)
    return table


def _notes(report: BenchReport) -> Iterator[str]:
    yield from _about_intervals(report)
    if any(row.theory for row in report.rows):
        yield (
            "worker ms: target + draft, the worker's wall time with the device drained around each; "
            "expected: acceptance length x the target's time without a draft / worker ms; "
            "bytes ms: a step's bytes over the measured copy bandwidth, and nothing else; of bytes: "
            "bytes ms / worker ms; byte bound: the speed-up if steps took as long as their bytes."
        )
    shown = labels(report.settings.drafts)
    for text, rows in _by_reason((row.error, row) for row in report.rows).items():
        names = dict.fromkeys(variant_name(row.variant, shown) for row in rows)
        what = "failed on the way" if any(row.measured for row in rows) else "not served"
        yield f"{what}: {', '.join(names)}: {text}"
    for text, engines in _by_reason((one.probe_error, one) for one in report.engines).items():
        names = dict.fromkeys(variant_name(one.variant, shown) for one in engines)
        yield f"parts of a step could not be measured for {', '.join(names)}: {text}"
    yield from _about_interruption(report, shown)


def _about_interruption(report: BenchReport, shown: dict[str, str]) -> Iterator[str]:
    counts: dict[Variant, list[int]] = {}
    for row in report.rows:
        if row.measured < report.settings.runs and not row.error:
            counts.setdefault(row.variant, []).append(row.measured)
    if counts:
        named = [f"{variant_name(variant, shown)} ({min(found)})" for variant, found in counts.items()]
        named = [
            *named[:_MOST_NAMED],
            *[f"{len(named) - _MOST_NAMED} more"] * (len(named) > _MOST_NAMED),
        ]
        yield (
            f"interrupted, with fewer than {report.settings.runs} measurements: {', '.join(named)}. "
            "The same command with --out goes on."
        )


def _about_intervals(report: BenchReport) -> Iterator[str]:
    """One line per number of pairs, most often one."""
    found = [one for row in report.rows for one in (row.speedup, row.against_stock) if one]
    for pairs, coverage in sorted({(one.pairs, one.coverage) for one in found}):
        if pairs == 1:
            yield "x none, x stock: of one measurement, so without an interval."
        elif coverage >= COVERAGE:
            yield f"x none, x stock: median of {pairs} pairs (its {coverage:.0%} interval)."
        else:
            yield (
                f"x none, x stock: median of {pairs} pairs (their range, which holds the true median in "
                f"{coverage:.0%} of cases; {COVERAGE:.0%} takes 6 pairs)."
            )
    if found and report.settings.rounds > 1:
        yield (
            f"Pairs are rounds of {_counted(report.settings.repeats, 'engine')} of each kind: what one "
            "start of an engine has over another is seen by --repeats alone."
        )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _by_reason(errors: Iterable[tuple[str | None, _T]]) -> dict[str, list[_T]]:
    """What failed, by one line that says why."""
    found: dict[str, list[_T]] = {}
    for error, what in errors:
        if error:
            found.setdefault(reason(error), []).append(what)
    return found


def reason(error: str) -> str:
    """One line: the engine's own error, or where it only points elsewhere, the last of its log."""
    first, *log = [line.strip() for line in error.splitlines() if line.strip()] or ["no message"]
    text, _ = cause_of(first, log)
    return text if len(text) <= _REASON_WIDTH else f"{text[:_REASON_WIDTH]} .."


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


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
