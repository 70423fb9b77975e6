# SPDX-License-Identifier: Apache-2.0
"""What a bench's rows say to do, and what in them not to trust."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from vllm_eagle_ext.checkpoint.draft_window import can_have_a_window
from vllm_eagle_ext.checkpoint.families.registry import drafters
from vllm_eagle_ext.measure.bench.results import Variant, VariantKind
from vllm_eagle_ext.measure.bench.rows import BenchReport, Pooled, Row, labels, variant_name
from vllm_eagle_ext.measure.bench.theory import best_k, predicted_speedups
from vllm_eagle_ext.measure.engine.machine import BUSY, DISTURBED
from vllm_eagle_ext.measure.intervals import COVERAGE, Interval

LOW_ACCEPTANCE = 0.4  # of the first position
COSTLY_VERIFY = 1.4  # steps without a draft
LARGE_SHARE = 0.35  # of a step
NOISY = 0.1  # spread over measurements / median
LEAST_STEPS = 30  # of a context bin
WORTH_TRYING = 1.05  # predicted against the measured K's own prediction
FADING = 0.8  # acceptance length of the last bin over that of the first
STANDARD_ERRORS = 4.0
_WINDOW = "draft_window"


def bench_advice(report: BenchReport) -> list[str]:
    return [
        *_others(report),
        *_best(report),
        *_untried(report),
        *_fading(report),
        *_against_stock(report),
        *_slower(report),
        *_texts(report),
        *_noise(report),
    ]


def _others(report: BenchReport) -> Iterator[str]:
    """Work of other processes, which the times say as much of as of the drafts."""
    context = report.context
    cores = context.cores or 0
    load, busiest = context.load_average, max(report.rows, key=_other_cores, default=None)
    found = []
    if load is not None and load > BUSY * cores:
        found.append(f"load average {load:.1f} before the first engine")
    if busiest is not None and _other_cores(busiest) > DISTURBED * cores:
        found.append(
            f"up to {_other_cores(busiest):.1f} cores busy with it during a measurement "
            f"({_listed(report, [busiest])})"
        )
    if cores and found:
        yield (
            f"other work ran on these {cores} cores, {' and '.join(found)}: measure again when the "
            "machine is idle before you trust a time."
        )


def _other_cores(row: Row) -> float:
    return row.other_cores or 0.0


def _best(report: BenchReport) -> Iterator[str]:
    kind: VariantKind = "ours" if "ours" in report.settings.kinds else "stock"
    drafts = list(dict.fromkeys(v.draft for v in report.variants if v.kind == kind))
    shown = labels([str(draft) for draft in drafts])
    for draft in drafts:
        named = f"{shown[str(draft)]}: " if len(drafts) > 1 else ""
        for level in report.settings.concurrency:
            found = [report.row(v, level) for v in report.variants if (v.kind, v.draft) == (kind, draft)]
            rows = [row for row in found if row and row.tokens_per_s]
            for judged in _comparable(report, rows):
                yield named + _verdict_on_k(report, judged, level)


def _comparable(report: BenchReport, rows: Sequence[Row]) -> list[Sequence[Row]]:
    """Group rows whose K can be compared: an acceptance length that was set makes no K the best."""
    if _length_is_set(report):
        return [[row] for row in rows]
    return [rows] if rows else []


def _length_is_set(report: BenchReport) -> bool:
    synthetic = report.settings.synthetic_acceptance
    return synthetic is not None and len(synthetic) == 1 and synthetic[0] > 1


def _verdict_on_k(report: BenchReport, rows: Sequence[Row], level: int) -> str:
    """Say which K to serve with, from the rows of one draft at one concurrency, one per K."""
    judged = [(row.speedup, row) for row in rows if row.speedup]
    if not judged:
        fastest = max(rows, key=_tokens_per_s)
        gives = "is fastest," if len(rows) > 1 else "gives"
        return (
            f"at concurrency {level} K={fastest.variant.k} {gives} {_tokens_per_s(fastest):.4g} "
            "tokens/s; without a draft nothing was measured."
        )
    faster = [pair for pair in judged if pair[0].low > 1]
    found, row = max(faster or judged, key=lambda pair: pair[0].median)
    k, several = row.variant.k, len(judged) > 1
    gives = f"{found.median:.2f}x no draft {_sure(found)}"
    if found.low > 1:
        if not several:
            return f"at concurrency {level} K={k} gives {gives}."
        alike = [other.variant.k for one, other in judged if other != row and one.overlaps(found)]
        return f"best K at concurrency {level}: {k}, {gives}{_as_well(alike)}."
    if found.high < 1:
        best = f"the best K, {k}," if several else f"K={k}"
        reasons = "; ".join(_causes(report, row)) or "no single cause stands out"
        return f"no draft is faster at concurrency {level}: {best} gives {gives}. Why: {reasons}."
    return f"no difference seen at concurrency {level}: K={k} gives {gives}."


def _as_well(ks: Sequence[int]) -> str:
    if not ks:
        return ""
    named = " and ".join(f"K={k}" for k in ks)
    return f"; {named} " + (
        "does as well within its interval" if len(ks) == 1 else "do as well within their intervals"
    )


def _causes(report: BenchReport, row: Row) -> Iterator[str]:
    if row.acceptance and row.acceptance[0] < LOW_ACCEPTANCE:
        yield (
            f"the first drafted token is accepted in {row.acceptance[0]:.0%} of steps, "
            f"acceptance length {row.acceptance_length:.2f}: another draft, or prompts like those it "
            "was trained on"
        )
    if row.split is None or row.step_ms is None:
        return
    if (cost := _verify_cost(report, row)) and cost >= COSTLY_VERIFY:
        tokens = (row.variant.k + 1) * row.concurrency
        why = _why_costly(report, row)
        yield f"verifying {tokens} tokens costs {cost:.1f} steps without a draft: {why}"
    if row.draft_share is not None and row.draft_share > LARGE_SHARE:
        yield f"the draft takes {row.draft_share:.0%} of the step: a smaller K or a smaller draft"
    rest = 1 - 1000 * (row.split.target_s + row.split.draft_s) / row.step_ms
    if rest > LARGE_SHARE and row.measured > 1:  # a single one may have been disturbed
        outside = "scheduling, prompts of other requests" if row.concurrency > 1 else "scheduling"
        yield f"{rest:.0%} of the step lies outside target and draft ({outside})"


def _verify_cost(report: BenchReport, row: Row) -> float | None:
    """Express the cost of a verify step in steps without a draft, measured alike."""
    plain = report.plain(row.concurrency)
    if plain is None or row.split is None:
        return None
    if plain.split:
        return row.split.target_s / plain.split.target_s
    return 1000 * row.split.target_s / plain.step_ms if plain.step_ms else None


def _why_costly(report: BenchReport, row: Row) -> str:
    traffic = report.traffic(row.variant)
    if traffic and traffic.experts:
        return "each further row of a mixture of experts reads further experts"
    if row.concurrency > 1:
        return "at this concurrency the target is no longer limited by its weights' bytes"
    return "this device is limited by its arithmetic, not by its memory"


def _fading(report: BenchReport) -> Iterator[str]:
    for variant, found in report.pooled().items():
        bins = [part for part in found.by_context if part.steps >= LEAST_STEPS]
        if variant.k == 0 or len(bins) < 2:
            continue
        first, last = (part.tokens / part.steps for part in (bins[0], bins[-1]))
        if last < FADING * first:
            yield (
                f"{_name(report, variant)}: the acceptance length falls with the context, {first:.2f} "
                f"below {bins[0].end} tokens and {last:.2f} from {bins[-1].start}: measure at the "
                f"lengths you serve{_with_a_window(report, variant, bins[0].end)}."
            )


def _with_a_window(report: BenchReport, variant: Variant, window: int) -> str:
    """Name the option where this package serves the draft by a class that takes it."""
    asked = _WINDOW in report.settings.eagle_ext
    serving = {one.facts.get("drafter") for one in report.engines if one.variant.draft == variant.draft}
    can = any(one.architecture in serving and can_have_a_window(one) for one in drafters())
    if asked or not can:
        return ""
    return (
        f", and with --eagle-ext '{{\"{_WINDOW}\": {window}}}', with which the draft attends to its "
        "last tokens alone"
    )


def _untried(report: BenchReport) -> Iterator[str]:
    """Name a smaller K that was not measured, where acceptance and costs promise more of it."""
    for variant in () if _length_is_set(report) else report.variants:
        if variant.kind == "ours" and variant.k == max(report.settings.ks, default=0):
            for row in report.of(variant):
                predicted = _predicted(report, row)
                best = best_k(predicted)
                known = best in (0, *report.settings.ks)
                if not known and predicted[best] > WORTH_TRYING * predicted[variant.k]:
                    yield (
                        f"{_name(report, variant)}: from its acceptance and costs, K={best} should give "
                        f"{predicted[best] / predicted[variant.k]:.2f} times as much at concurrency "
                        f"{row.concurrency}: measure it."
                    )


def _predicted(report: BenchReport, row: Row) -> Mapping[int, float]:
    plain = report.plain(row.concurrency)
    traffic = report.traffic(row.variant)
    if not (plain and plain.split and row.split and row.acceptance and traffic):
        return {}
    return predicted_speedups(
        row.acceptance, plain_step_s=plain.split.target_s, split=row.split, k=row.variant.k,
        parallel_drafts=traffic.parallel_drafts,
    )  # fmt: skip


def _against_stock(report: BenchReport) -> Iterator[str]:
    found = report.pooled()
    for variant, ours in found.items():
        stock = found.get(variant.model_copy(update={"kind": "stock"}))
        if variant.kind != "ours" or stock is None:
            continue
        mine, theirs = ours.acceptance_length, stock.acceptance_length
        if mine is None or theirs is None:
            continue
        error = math.hypot(_standard_error(ours), _standard_error(stock))
        if abs(mine - theirs) > STANDARD_ERRORS * error:
            yield (
                f"{_name(report, variant)}: acceptance length {mine:.2f}, with stock vLLM {theirs:.2f}; "
                "sampling does not explain it: the two read this draft differently "
                "(`vllm-eagle check` says how it is meant)."
            )


def _slower(report: BenchReport) -> Iterator[str]:
    """Say where ours is slower, if the pairs are enough for it."""
    found = [(row.against_stock, row) for row in report.rows if row.against_stock]
    slower = [(one, row) for one, row in found if one.coverage >= COVERAGE and one.high < 1]
    if slower:
        worst, rows = min(one.median for one, _ in slower), [row for _, row in slower]
        yield f"ours is slower than stock vLLM, {worst:.2f}x at worst: {_listed(report, rows)}."


def _standard_error(found: Pooled) -> float:
    """The acceptance length's, from the steps of one pass over the prompts, taken as independent.

    A step's length L has P(L > j) = acceptance of position j, so E[L] and E[L^2] follow from the rates.
    """
    mean = sum(found.acceptance)
    square = sum((2 * place + 1) * rate for place, rate in enumerate(found.acceptance))
    return math.sqrt(max(0.0, square - mean**2) / max(1.0, found.drafts_once))


def _texts(report: BenchReport) -> Iterator[str]:
    rows = [row for row in report.rows if row.same_texts is False]
    if rows:
        of = len([row for row in report.rows if row.same_texts is not None])
        yield (
            f"texts differ from those without a draft in {len(rows)} of {of} rows "
            f"({_listed(report, rows)}): `vllm-eagle verify` tells near-ties from faults."
        )


def _noise(report: BenchReport) -> Iterator[str]:
    timed = [row for row in report.rows if row.tokens_per_s]
    rows = [row for row in timed if row.tokens_per_s and row.tokens_per_s.relative > NOISY]
    if not rows:
        return
    worst = max(rows, key=lambda row: row.tokens_per_s.relative if row.tokens_per_s else 0)
    assert worst.tokens_per_s is not None
    yield (
        f"noisy machine: tokens/s spread by more than {NOISY:.0%} over measurements in {len(rows)} of "
        f"{len(timed)} rows, at most {worst.tokens_per_s.relative:.0%} ({_listed(report, [worst])}). "
        "Trust the paired speed-ups, not single rates; --repeats and --rounds narrow these."
    )


def _name(report: BenchReport, variant: Variant) -> str:
    return variant_name(variant, labels(report.settings.drafts))


def _listed(report: BenchReport, rows: Sequence[Row], most: int = 4) -> str:
    named = [f"{_name(report, row.variant)} at concurrency {row.concurrency}" for row in rows[:most]]
    return ", ".join([*named, ".."] if len(rows) > most else named)


def _tokens_per_s(row: Row) -> float:
    return row.tokens_per_s.median if row.tokens_per_s else 0.0


def _sure(found: Interval) -> str:
    if not found.is_interval:
        return "(one measurement, so no interval: raise --repeats)"
    return f"({found.low:.2f} to {found.high:.2f})"
