# SPDX-License-Identifier: Apache-2.0
"""What is printed above and below a report's tables: what is measured, what failed, what to serve."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TypeVar

from vllm_eagle_ext.failure_causes import cause_of
from vllm_eagle_ext.measure.bench.advice import name_of
from vllm_eagle_ext.measure.bench.results import (
    PLAIN,
    Config,
    Context,
    Report,
    ServedLoad,
    Settings,
    Variant,
)
from vllm_eagle_ext.measure.bench.surface import gain_over_loads, rates_by_position, surface_of
from vllm_eagle_ext.measure.engine.machine import BUSY, DISTURBED
from vllm_eagle_ext.measure.intervals import COVERAGE, Interval
from vllm_eagle_ext.printable import shell_line

PAYS, UNSURE = "*", "~"
_SHORTER = 0.95  # of a step without a draft: less than noise
_REASON_WIDTH = 200
_T = TypeVar("_T")


def premises(settings: Settings, context: Context) -> Iterator[str]:
    """Say what is measured, on what and how."""
    versions = ", ".join(f"{name} {version}" for name, version in context.versions.items())
    drafts = f" with {', '.join(settings.drafts)}" if settings.drafts else ""
    yield f"{settings.target}{drafts} on {context.device}"
    yield f"{versions}; {context.started}"
    thinking = {None: "as the template has it", True: "on", False: "off"}[settings.thinking]
    template = f"chat template on, thinking {thinking}"
    measured = f"at most {settings.max_tokens} tokens"
    if settings.steps:
        lengths = ", ".join(map(str, settings.ks))
        measured = f"K of {lengths} and only steps of decoding, {settings.steps} of each load"
    yield (
        f"{settings.num_prompts} prompts ({settings.prompts}), "
        f"{template if settings.chat_template else 'no chat template'}; {measured}, "
        f"temperature {settings.temperature:g}, seed {settings.seed}"
    )
    kept = "all kept at the same time" if settings.together else "one at a time"
    yield (
        f"{_counted(settings.repeats, 'engine')} of each kind, {kept}; "
        f"{_counted(settings.rounds, 'round')} at each load"
    )
    if settings.dummy:
        yield "Dummy weights: times are real, texts and acceptance are not."
    if settings.synthetic_acceptance is not None:
        yield f"Synthetic acceptance {settings.synthetic_acceptance}: drafts are accepted by lot."


def about_the_machine(report: Report) -> Iterator[str]:
    """Say how busy it was, and whether the times can be trusted."""
    context = report.context
    cores, load = context.cores or 1, context.load_average
    if load is not None:
        yield f"load average {load:.2f} on {cores} cores before the first engine"
    if chosen := {one.gpu_memory_utilization for one in report.engines} - {None}:
        shares = ", ".join(f"{share:.2f}" for share in sorted(filter(None, chosen)))
        yield f"gpu_memory_utilization {shares}, chosen by what was free"
    others = max((row.other_cores or 0.0 for row in report.rows), default=0.0)
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
    yield from _about_intervals(report)
    if report.settings.command == "tune":
        yield from _about_the_surface(report)
    failed = ((row.error, row) for row in report.rows)
    for text, rows in _by_reason(failed).items():
        names = dict.fromkeys(name_of(report, row.variant) for row in rows)
        what = "failed on the way" if any(row.measured for row in rows) else "not served"
        yield f"{what}: {', '.join(names)}: {text}"
    for text, engines in _by_reason((one.probe_error, one) for one in report.engines).items():
        names = dict.fromkeys(name_of(report, one.variant) for one in engines)
        yield f"parts of a step could not be measured for {', '.join(names)}: {text}"
    runs = report.settings.runs
    if cut := dict.fromkeys(row.variant for row in report.rows if row.measured < runs and not row.error):
        named = ", ".join(name_of(report, variant) for variant in cut)
        yield f"interrupted, with fewer than {runs} measurements: {named}."


def _about_the_surface(report: Report) -> Iterator[str]:
    yield (
        "each accepted: the least share of accepted tokens, alike at each position, at which some K "
        "pays. K=0: nothing is drafted."
    )
    if report.settings.surface_only:
        yield "Only step times were measured: they hold for any draft of this shape, trained or not."
        return
    rates = " ".join(f"{rate:.2f}" for rate in rates_by_position(report))
    yield f"{PAYS} the measured length is above; {UNSURE} within the interval. Per position: {rates}"
    if report.of("closing"):
        yield "in brackets: interval of the median over the rounds, and what the sweep predicted"


def _about_intervals(report: Report) -> Iterator[str]:
    """Say what the intervals are, in one line per number of pairs, most often one."""
    what = "x none, x stock" if report.settings.command == "bench" else "ratios"
    found = [one for row in report.rows for one in (row.speedup, row.against_stock) if one]
    for pairs, coverage in sorted({(one.pairs, one.coverage) for one in found}):
        if pairs == 1:
            yield f"{what}: of one measurement, so without an interval."
        elif coverage >= COVERAGE:
            yield f"{what}: median of {pairs} pairs (its {coverage:.0%} interval)."
        else:
            yield (
                f"{what}: median of {pairs} pairs (their range, which holds the true median in "
                f"{coverage:.0%} of cases; {COVERAGE:.0%} takes 6 pairs)."
            )
    if found and report.settings.rounds > 1:
        yield (
            f"Pairs are rounds of {_counted(report.settings.repeats, 'engine')} of each kind: what one "
            "start of an engine has over another only shows in --repeats of `bench`."
        )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _by_reason(errors: Iterable[tuple[str | None, _T]]) -> dict[str, list[_T]]:
    """Group what failed by one line that says why."""
    found: dict[str, list[_T]] = {}
    for error, what in errors:
        if error:
            found.setdefault(reason(error), []).append(what)
    return found


def reason(error: str) -> str:
    """Return one line: the engine's own error, or the last of its log where it points elsewhere."""
    first, *log = [line.strip() for line in error.splitlines() if line.strip()] or ["no message"]
    text, _ = cause_of(first, log)
    return text if len(text) <= _REASON_WIDTH else f"{text[:_REASON_WIDTH]} .."


def recommendation(report: Report) -> Iterator[str]:
    """Say what to serve with, from the closing round; nothing of a report without a choice."""
    choice = report.choice
    if choice is None:
        return
    compared = dict.fromkeys(row.variant for row in report.of("closing"))
    if choice.served == PLAIN:
        yield "No K pays at any load that was measured: serve without a draft."
        for other in compared:
            if other != PLAIN:
                yield f"As served, {other.length} over no draft: {mean_text(report, other)}."
        return
    yield from _flag_lines(report, choice.config)
    yield (
        f"Over no draft: {mean_text(report, choice.served)}, measured with this config in "
        f"{report.settings.rounds} rounds."
    )
    for other in compared:
        if other not in (PLAIN, choice.served):
            yield f"Next to it, {other.length}: {mean_text(report, other)}."
    if choice.served.schedule:
        spans = ", ".join(f"K={k} for {_span(a, b)}" for a, b, k in choice.served.schedule)
        yield f"The schedule: {spans}; more requests get the last K."
    yield from _slower_lines(report)


def _slower_lines(report: Report) -> Iterator[str]:
    choice = report.choice
    assert choice is not None
    for load in choice.slower:
        yield f"SLOWER than no draft {_gain_at(report, choice.served, load)}."
    for load in choice.undecided:
        yield (
            f"Slower or not cannot be told {_gain_at(report, choice.served, load)}. More --rounds "
            "narrow it."
        )
    if choice.with_zero:
        yield "Less slow there, by the sweep, with K=0:"
        yield from _flag_lines(report, choice.with_zero)
    elif choice.slower:
        yield (
            "K=0 there would be no faster, by the sweep. Keep such loads off this server, or serve them "
            "without a draft."
        )


def mean_text(report: Report, served: Variant) -> str:
    """Give the mean gain over all loads, with its interval over the rounds."""
    gain = gain_over_loads(report, served)
    loads = len([row for row in report.of("closing") if row.variant == served and row.speedup])
    return "not measured" if gain is None else f"{gain_text(gain)} in the mean over {loads} loads"


def gain_text(gain: Interval, more: str = "") -> str:
    if not gain.is_interval:
        return f"{gain.median:.2f}x{f' ({more[2:]})' if more else ''}"
    return f"{gain.median:.2f}x ({gain.low:.2f} to {gain.high:.2f}{more})"


def _gain_at(report: Report, served: Variant, load: ServedLoad) -> str:
    row = report.row("closing", served, load)
    assert row is not None
    assert row.speedup is not None
    many = f"{load.concurrency} request{'s' * (load.concurrency > 1)}"
    return f"with {many} at context {load.context}: {gain_text(row.speedup)}"


def _flag_lines(report: Report, config: Config) -> Iterator[str]:
    if config.speculative_config is None:
        yield "  no --speculative-config: no draft"
        return
    words = ["--speculative-config", json.dumps(config.speculative_config)]
    if config.additional_config:
        words += ["--additional-config", json.dumps(config.additional_config)]
    if report.settings.engine.get("enable_prefix_caching") is False:
        words.append("--no-enable-prefix-caching")
    yield "  " + shell_line(words)


def _span(first: int, last: int) -> str:
    named = f"{first}" if first == last else f"{first} to {last}"
    return f"{named} request{'s' * (last > 1)}"
