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
    Latency,
    Measurement,
    Report,
    Row,
    ServedLoad,
    Settings,
    Split,
    Spread,
    Stage,
    Variant,
    sha256_of,
)
from vllm_eagle_ext.measure.engine.load import Measured, TimedSteps
from vllm_eagle_ext.measure.intervals import Interval, paired
from vllm_eagle_ext.measure.per_request import spread_of


def summarise(
    settings: Settings,
    context: Context,
    engines: Sequence[EngineRecord],
    measurements: Sequence[Measurement],
) -> Report:
    """Make a row of each variant at each load, also of one that could not be served."""
    summary = _Summary(settings, engines, measurements)
    stages = dict.fromkeys([m.stage for m in measurements] + [engine.stage for engine in engines])
    rows = []
    for stage in stages:
        found = [engine.variant for engine in engines if engine.stage == stage and engine.error]
        found += [m.variant for m in measurements if m.stage == stage]
        served = sorted(dict.fromkeys(found), key=lambda one: _row_order(settings, one))
        rows += [summary.row(stage, one, load) for load in settings.loads for one in served]
    return Report(settings=settings, context=context, engines=list(engines), rows=rows)


def _row_order(settings: Settings, variant: Variant) -> tuple[int, int, int]:
    """Sort no draft first, then drafts, K and, of one K, stock before ours."""
    kinds = ["none", "stock", "ours", "held", "schedule", "adaptive"]
    draft = settings.drafts.index(variant.draft) if variant.draft else -1
    special = variant.kind in ("schedule", "adaptive")
    return draft, 10**6 if special else variant.k, kinds.index(variant.kind)


class _Summary:
    """Measurements by stage, variant, load and repeat."""

    def __init__(
        self,
        settings: Settings,
        engines: Sequence[EngineRecord],
        measurements: Sequence[Measurement],
    ) -> None:
        self.settings, self.engines = settings, engines
        self.runs: dict[tuple[Stage, Variant, ServedLoad], dict[int, Measurement]] = {}
        for one in measurements:
            self.runs.setdefault((one.stage, one.variant, one.load), {})[one.repeat] = one

    def row(self, stage: Stage, variant: Variant, load: ServedLoad) -> Row:
        own = self.runs.get((stage, variant, load), {})
        errors = [e.error for e in self.engines if (e.stage, e.variant) == (stage, variant) and e.error]
        row = Row(
            stage=stage, variant=variant, concurrency=load.concurrency, context=load.context,
            measured=len(own), error=errors[-1] if errors else None, runs=list(own.values()),
        )  # fmt: skip
        if not own:
            return row
        split = self._split(stage, variant, load)
        row = row.model_copy(update=_metrics(variant, row.runs) | {"split": split})
        counted = [one for run in row.runs for one in run.histograms]
        if counted:
            categories = self.settings.categories * len(row.runs)
            spread = spread_of(counted, max(self.settings.ks), categories)
            row = row.model_copy(update=spread)
        row = row.model_copy(update=self._compared(stage, variant, load))
        return row.model_copy(update={"draft_share": _draft_share(row)})

    def _compared(self, stage: Stage, variant: Variant, load: ServedLoad) -> dict[str, Any]:
        found: dict[str, Any] = {}
        own, base = self.runs[stage, variant, load], self.runs.get((stage, PLAIN, load), {})
        if variant != PLAIN and base:
            found["speedup"] = _ratio(own, base, lambda run: run.tokens_per_s)
            found["step_ratio"] = _ratio(own, base, lambda run: run.step_s)
            settings = self.settings
            if stage == "texts" and not settings.temperature and settings.synthetic_acceptance is None:
                texts = {run.texts_sha256 for run in base.values()}
                found["same_texts"] = all(run.texts_sha256 in texts for run in own.values())
        if variant.kind == "ours":
            stock = variant.model_copy(update={"kind": "stock"})
            stock_runs = self.runs.get((stage, stock, load), {})
            found["against_stock"] = _ratio(own, stock_runs, lambda run: run.tokens_per_s)
        return found

    def _split(self, stage: Stage, variant: Variant, load: ServedLoad) -> Split | None:
        own = [engine for engine in self.engines if (engine.stage, engine.variant) == (stage, variant)]
        found = [s for engine in own for s in engine.splits if s.concurrency == load.concurrency]
        return found[-1] if found else None


def _metrics(variant: Variant, runs: Sequence[Measurement]) -> dict[str, Any]:
    drafts = sum(run.drafts for run in runs)
    accepted = added([run.accepted for run in runs])
    rates = [run.tokens_per_s for run in runs]
    steps = [run.step_s for run in runs if run.step_s is not None]
    others = [run.other_cores for run in runs if run.other_cores is not None]
    return {
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


def _draft_share(row: Row) -> float | None:
    """Return the draft's part of a step.

    With the device drained around both, the parts can be longer than the step they are parts of.
    """
    if row.split is None or row.step_ms is None or not row.variant.k:
        return None
    return row.split.draft_s / max(row.step_ms / 1000, row.split.target_s + row.split.draft_s)


def _latency(seconds: Sequence[float]) -> Latency | None:
    import numpy as np

    if not seconds:
        return None
    p50, p99 = np.percentile(seconds, (50, 99))
    return Latency(mean=1000 * statistics.fmean(seconds), p50=1000 * float(p50), p99=1000 * float(p99))
