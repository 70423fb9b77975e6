# SPDX-License-Identifier: Apache-2.0
"""Metrics of what an engine decoded, and measurements into rows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from vllm_eagle_ext.measure.bench.results import (
    PLAIN,
    Context,
    EngineRecord,
    Interval,
    Latency,
    Measurement,
    Report,
    Row,
    ServedLoad,
    Settings,
    Spread,
    Stage,
    Variant,
    paired,
    sha256_of,
)
from vllm_eagle_ext.measure.engine.load import Measured, TimedSteps, spread_of

Runs = dict[tuple[Stage, Variant, ServedLoad], dict[int, Measurement]]


def summarise(
    settings: Settings,
    context: Context,
    engines: Sequence[EngineRecord],
    measurements: Sequence[Measurement],
) -> Report:
    """Make a row of each variant at each load, also of one that could not be served."""
    # Measurements by what they measured, and by repeat.
    runs: Runs = {}
    for run in measurements:
        runs.setdefault((run.stage, run.variant, run.load), {})[run.repeat] = run
    failed = {(engine.stage, engine.variant): engine.error for engine in engines if engine.error}
    # The rows of each stage in the order of its loads.
    measured = [(run.stage, run.variant) for run in measurements]
    rows = []
    for stage in dict.fromkeys([run.stage for run in measurements] + [e.stage for e in engines]):
        served = {variant for at, variant in [*failed, *measured] if at == stage}
        for load in settings.loads:
            for variant in sorted(served, key=lambda one: _row_order(settings, one)):
                row = Row(
                    stage=stage, variant=variant, concurrency=load.concurrency, context=load.context,
                    measured=0, error=failed.get((stage, variant)),
                )  # fmt: skip
                rows.append(row.model_copy(update=_figures(settings, row, runs)))
    return Report(settings=settings, context=context, engines=list(engines), rows=rows)


def _row_order(settings: Settings, variant: Variant) -> tuple[int, int, int]:
    """Sort no draft first, then drafts, K and, of one K, stock before ours."""
    kinds = ["none", "stock", "ours", "held", "schedule", "adaptive"]
    draft = settings.drafts.index(variant.draft) if variant.draft else -1
    special = variant.kind in ("schedule", "adaptive")
    return draft, 10**6 if special else variant.k, kinds.index(variant.kind)


def _figures(settings: Settings, row: Row, runs: Runs) -> dict[str, Any]:
    """Compute what follows from the measurements of a row, by themselves and against others."""
    stage, variant, load = row.stage, row.variant, row.load
    own = runs.get((stage, variant, load), {})
    if not own:
        return {}
    figures = _metrics(variant, list(own.values()))
    if counted := [histogram for run in own.values() for histogram in run.histograms]:
        figures |= spread_of(counted, max(settings.ks), settings.categories * len(own))
    # Against no draft and, of ours, against stock.
    base = runs.get((stage, PLAIN, load), {})
    if variant != PLAIN and base:
        figures["speedup"] = _ratio(own, base, lambda run: run.tokens_per_s)
        figures["step_ratio"] = _ratio(own, base, lambda run: run.step_s)
        if stage == "texts" and not settings.temperature and settings.synthetic_acceptance is None:
            texts = {run.texts_sha256 for run in base.values()}
            figures["same_texts"] = all(run.texts_sha256 in texts for run in own.values())
    if variant.kind == "ours":
        stock = runs.get((stage, variant.model_copy(update={"kind": "stock"}), load), {})
        figures["against_stock"] = _ratio(own, stock, lambda run: run.tokens_per_s)
    return figures


def _metrics(variant: Variant, runs: list[Measurement]) -> dict[str, Any]:
    drafts = sum(run.drafts for run in runs)
    accepted = added([run.accepted for run in runs])
    rates = [run.tokens_per_s for run in runs]
    steps = [run.step_s for run in runs if run.step_s is not None]
    others = [run.other_cores for run in runs if run.other_cores is not None]
    return {
        "measured": len(runs),
        "runs": runs,
        "tokens_per_s": Spread(median=statistics.median(rates), low=min(rates), high=max(rates)),
        "step_ms": 1000 * statistics.median(steps) if steps else None,
        "drafts": drafts,
        "accepted": accepted,
        "acceptance": [count / drafts for count in accepted] if drafts else [],
        "acceptance_length": acceptance_length_of(drafts, accepted) if variant.k else 1.0,
        "tpot_ms": _latency([value for run in runs for value in run.tpot_s]),
        "ttft_ms": _latency([value for run in runs for value in run.ttft_s]),
        "other_cores": max(others, default=None),
    }


def metrics_of_texts(found: Measured) -> dict[str, Any]:
    answers = found.answers
    steps = sum(len(answer.steps) - 1 for answer in answers if answer.steps)
    decode_s = sum(answer.decode_s for answer in answers)
    return {
        "tokens_per_s": sum(len(answer.tokens) for answer in answers) / found.seconds,
        # TPOT x acceptance length weighs all texts alike, and takes a cut last step for whole.
        "step_s": decode_s / steps if steps else None,
        "drafts": found.drafts,
        "accepted": found.accepted,
        "histograms": found.histograms if any(found.histograms) else [],
        "ttft_s": [answer.ttft_s for answer in answers],
        "tpot_s": [a.decode_s / (len(a.tokens) - 1) for a in answers if len(a.tokens) > 1],
        "texts_sha256": sha256_of(found.texts),
    }


def metrics_of_steps(waves: Sequence[TimedSteps]) -> dict[str, Any]:
    """Compute the metrics of a load from all its waves."""
    seconds = [second for one in waves for second in one.seconds]
    step_s = statistics.median(seconds)
    return {
        "tokens_per_s": sum(one.tokens for one in waves) / len(seconds) / step_s,
        "step_s": step_s,
        "drafts": sum(one.drafts for one in waves),
        "accepted": added([one.accepted for one in waves]),
    }


def added(counts: Sequence[Sequence[int]]) -> list[int]:
    """Add counts per position, of which some reach further than others."""
    longest = max(map(len, counts), default=0)
    return [sum(one[place] for one in counts if place < len(one)) for place in range(longest)]


def acceptance_length_of(drafts: int, accepted: Sequence[int]) -> float | None:
    return 1 + sum(accepted) / drafts if drafts else None


def pooled(rows: Sequence[Row]) -> tuple[int, list[int]]:
    """Count the drafts, and those accepted per position, over rows that decode the same prompts."""
    return sum(row.drafts for row in rows), added([row.accepted for row in rows])


def _ratio(
    own: dict[int, Measurement],
    base: dict[int, Measurement],
    metric: Callable[[Measurement], float | None],
) -> Interval | None:
    values, others = (
        {repeat: found for repeat, run in runs.items() if (found := metric(run)) is not None}
        for runs in (own, base)
    )
    return paired(values, others)


def _latency(seconds: Sequence[float]) -> Latency | None:
    import numpy as np

    if not seconds:
        return None
    p50, p99 = np.percentile(seconds, (50, 99))
    return Latency(mean=1000 * statistics.fmean(seconds), p50=1000 * float(p50), p99=1000 * float(p99))
