# SPDX-License-Identifier: Apache-2.0
"""What a tune prints below its tables: the config to serve with, and where it is slower."""

from __future__ import annotations

import json
from collections.abc import Iterator

from vllm_eagle_ext.measure.bench.results import PLAIN, Config, Report, ServedLoad, Variant
from vllm_eagle_ext.measure.bench.surface import gain_over_loads
from vllm_eagle_ext.measure.intervals import Interval
from vllm_eagle_ext.printable import shell_line


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
