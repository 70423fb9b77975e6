# SPDX-License-Identifier: Apache-2.0
"""What a bench's rows say to do, and what in them not to trust."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from vllm_eagle_ext.measure.bench.results import Report, Row, Variant, VariantKind, labels
from vllm_eagle_ext.measure.bench.summary import acceptance_length_of, pooled
from vllm_eagle_ext.measure.intervals import COVERAGE, Interval

NOISY = 0.1  # spread over measurements / median
STANDARD_ERRORS = 4.0


def bench_advice(report: Report) -> list[str]:
    return [
        *_best(report),
        *_against_stock(report),
        *_slower(report),
        *_texts(report),
        *_noise(report),
    ]


def _best(report: Report) -> Iterator[str]:
    kind: VariantKind = "ours" if "ours" in report.settings.kinds else "stock"
    found = [row for row in report.of("texts") if row.variant.kind == kind]
    drafts = list(dict.fromkeys(str(row.variant.draft) for row in found))
    shown = labels(drafts)
    for draft in drafts:
        named = f"{shown[draft]}: " if len(drafts) > 1 else ""
        for level in report.settings.concurrency:
            rows = [r for r in found if (r.variant.draft, r.concurrency) == (draft, level)]
            for judged in _comparable(report, rows):
                yield named + _verdict_on_k(judged, level)


def _comparable(report: Report, rows: Sequence[Row]) -> list[Sequence[Row]]:
    """Group rows whose K can be compared: an acceptance length that was set makes no K the best."""
    synthetic = report.settings.synthetic_acceptance
    if synthetic is not None and len(synthetic) == 1 and synthetic[0] > 1:
        return [[row] for row in rows]
    return [rows] if rows else []


def _verdict_on_k(rows: Sequence[Row], level: int) -> str:
    """Say which K to serve with, from the rows of one draft at one concurrency, one per K."""
    judged = [(row.speedup, row.variant.k) for row in rows if row.speedup]
    if not judged:
        fastest = max(rows, key=_tokens_per_s)
        gives = "is fastest," if len(rows) > 1 else "gives"
        return (
            f"at concurrency {level} K={fastest.variant.k} {gives} {_tokens_per_s(fastest):.4g} "
            "tokens/s; without a draft nothing was measured."
        )
    faster = [pair for pair in judged if pair[0].low > 1]
    found, k = max(faster or judged, key=lambda pair: pair[0].median)
    several = len(judged) > 1
    gives = f"{found.median:.2f}x no draft {_sure(found)}"
    if found.low > 1:
        if not several:
            return f"at concurrency {level} K={k} gives {gives}."
        alike = [other for one, other in judged if other != k and one.overlaps(found)]
        return f"best K at concurrency {level}: {k}, {gives}{_as_well(alike)}."
    if found.high < 1:
        best = f"the best K, {k}," if several else f"K={k}"
        return f"no draft is faster at concurrency {level}: {best} gives {gives}."
    return f"no difference seen at concurrency {level}: K={k} gives {gives}."


def _as_well(ks: Sequence[int]) -> str:
    if not ks:
        return ""
    named = " and ".join(f"K={k}" for k in ks)
    return f"; {named} " + (
        "does as well within its interval" if len(ks) == 1 else "do as well within their intervals"
    )


def _against_stock(report: Report) -> Iterator[str]:
    rows: dict[Variant, list[Row]] = {}
    for row in report.of("texts"):
        rows.setdefault(row.variant, []).append(row)
    for variant, ours in rows.items():
        stock = rows.get(variant.model_copy(update={"kind": "stock"}))
        if variant.kind != "ours" or stock is None:
            continue
        mine, theirs = (acceptance_length_of(*pooled(one)) for one in (ours, stock))
        if mine is None or theirs is None:
            continue
        error = math.hypot(_standard_error(ours), _standard_error(stock))
        if abs(mine - theirs) > STANDARD_ERRORS * error:
            yield (
                f"{name_of(report, variant)}: acceptance length {mine:.2f}, with stock vLLM "
                f"{theirs:.2f}; sampling does not explain it: the two read this draft differently "
                "(`vllm-eagle check` says how it is meant)."
            )


def _standard_error(rows: Sequence[Row]) -> float:
    """Estimate the standard error of the acceptance length.

    The steps of one pass over the prompts are taken as independent. A step's length L has P(L > j) =
    acceptance of position j, so E[L] and E[L^2] follow from the rates.
    """
    drafts, accepted = pooled(rows)
    rates = [count / drafts for count in accepted]
    mean = sum(rates)
    square = sum((2 * place + 1) * rate for place, rate in enumerate(rates))
    once = drafts / sum(row.measured for row in rows)  # more passes bring no new texts
    return math.sqrt(max(0.0, square - mean**2) / max(1.0, once))


def _slower(report: Report) -> Iterator[str]:
    """Say where ours is slower than stock vLLM, if the pairs are enough for it."""
    found = [(row.against_stock, row) for row in report.of("texts") if row.against_stock]
    slower = [(one, row) for one, row in found if one.coverage >= COVERAGE and one.high < 1]
    if slower:
        named = [f"{_row_name(report, row)}, {one.median:.2f}x {_sure(one)}" for one, row in slower]
        yield f"ours is slower than stock vLLM: {'; '.join(named)}."


def _texts(report: Report) -> Iterator[str]:
    rows = [row for row in report.rows if row.same_texts is False]
    if rows:
        of = len([row for row in report.rows if row.same_texts is not None])
        yield (
            f"texts differ from those without a draft in {len(rows)} of {of} rows "
            f"({_listed(report, rows)}): `vllm-eagle verify` tells near-ties from faults."
        )


def _noise(report: Report) -> Iterator[str]:
    timed = [row for row in report.of("texts") if row.tokens_per_s]
    rows = [row for row in timed if row.tokens_per_s and row.tokens_per_s.relative > NOISY]
    if rows:
        yield (
            f"noisy machine: tokens/s spread by more than {NOISY:.0%} over measurements in {len(rows)} "
            f"of {len(timed)} rows ({_listed(report, rows)}). "
            "Trust the paired speed-ups, not single rates; --repeats and --rounds narrow these."
        )


def name_of(report: Report, variant: Variant) -> str:
    """Name a variant, with its draft's label."""
    draft = labels(report.settings.drafts).get(str(variant.draft))
    return variant.model_copy(update={"draft": draft}).name


def _row_name(report: Report, row: Row) -> str:
    return f"{name_of(report, row.variant)} at concurrency {row.concurrency}"


def _listed(report: Report, rows: Sequence[Row], most: int = 4) -> str:
    named = [_row_name(report, row) for row in rows[:most]]
    return ", ".join([*named, ".."] if len(rows) > most else named)


def _tokens_per_s(row: Row) -> float:
    return row.tokens_per_s.median if row.tokens_per_s else 0.0


def _sure(found: Interval) -> str:
    if not found.is_interval:
        return "(one measurement, so no interval: raise --repeats)"
    return f"({found.low:.2f} to {found.high:.2f})"
