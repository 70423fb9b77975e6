# SPDX-License-Identifier: Apache-2.0
"""Measurements into rows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from vllm_eagle_ext.measure.bench.results import (
    EngineRecord,
    Measurement,
    Settings,
    Split,
    Traffic,
    Variant,
)
from vllm_eagle_ext.measure.bench.rows import (
    PLAIN,
    BenchReport,
    Latency,
    Row,
    Served,
    Spread,
    acceptance_length_of,
    merged_bins,
)
from vllm_eagle_ext.measure.bench.schedule import variants
from vllm_eagle_ext.measure.bench.theory import Theory, theory
from vllm_eagle_ext.measure.folder import Context
from vllm_eagle_ext.measure.intervals import paired


def summarise(
    settings: Settings,
    context: Context,
    engines: Sequence[EngineRecord],
    measurements: Sequence[Measurement],
) -> BenchReport:
    bench = _Bench(settings, engines, measurements)
    found = [m.variant for m in measurements] + [engine.variant for engine in engines]
    order = list(dict.fromkeys([*variants(settings), *found]))
    levels = sorted({*settings.concurrency, *(m.concurrency for m in measurements)})
    return BenchReport(
        settings=settings,
        context=context,
        engines=[served for variant in order if (served := bench.served(variant))],
        rows=[bench.row(variant, level) for level in levels for variant in order],
    )


class _Bench:
    """What lies in the folder, by variant, concurrency and repeat. Of two with the same, the later."""

    def __init__(
        self,
        settings: Settings,
        engines: Sequence[EngineRecord],
        measurements: Sequence[Measurement],
    ) -> None:
        self.settings, self.engines = settings, engines
        self.runs: dict[tuple[Variant, int], dict[int, Measurement]] = {}
        for one in measurements:
            self.runs.setdefault((one.variant, one.concurrency), {})[one.repeat] = one

    def served(self, variant: Variant) -> Served | None:
        found = [engine for engine in self.engines if engine.variant == variant and not engine.error]
        if not found:
            return None
        facts = [engine.facts for engine in found if engine.facts]
        probed = [engine for engine in found if engine.probe_error or engine.splits or engine.traffic]
        return Served(
            variant=variant,
            start_s=statistics.median(engine.start_s for engine in found),
            facts=facts[-1] if facts else {},
            traffic=self._traffic(variant),
            gpu_memory_utilization=found[-1].gpu_memory_utilization,
            probe_error=probed[-1].probe_error if probed else None,
        )

    def row(self, variant: Variant, concurrency: int) -> Row:
        runs = self.runs.get((variant, concurrency), {})
        errors = [engine.error for engine in self.engines if engine.variant == variant and engine.error]
        # A variant that failed is not tried again, so its error is why measurements are missing.
        error = errors[-1] if errors and len(runs) < self.settings.runs else None
        row = Row(variant=variant, concurrency=concurrency, measured=len(runs), error=error)
        if not runs:
            return row
        row = row.model_copy(update=self._timed(list(runs.values())))
        row = row.model_copy(update=self._compared(variant, concurrency))
        row = row.model_copy(update=self._parts(row))
        return row.model_copy(update={"theory": self._theory(row, list(runs.values()))})

    def _parts(self, row: Row) -> dict[str, Any]:
        split = self._split(row.variant, row.concurrency)
        if split is None or row.step_ms is None:
            return {"split": split}
        # With the device drained around both, the parts can be longer than the step they are parts of.
        whole = max(row.step_ms / 1000, split.target_s + split.draft_s)
        return {"split": split, "draft_share": split.draft_s / whole if row.variant.k else None}

    def _timed(self, runs: Sequence[Measurement]) -> dict[str, Any]:
        drafts = sum(run.drafts for run in runs)
        accepted = [
            sum(column) for column in zip(*(r.accepted for r in runs if r.accepted), strict=True)
        ]
        length = 1.0 if runs[0].variant == PLAIN else acceptance_length_of(drafts, accepted)
        rates = [run.tokens_per_s for run in runs]
        return {
            "tokens_per_s": Spread(median=statistics.median(rates), low=min(rates), high=max(rates)),
            "tpot_ms": _latency([value for run in runs for value in run.tpot_s]),
            "ttft_ms": _latency([value for run in runs for value in run.ttft_s]),
            "drafts": drafts,
            "accepted": accepted,
            "acceptance": [count / drafts for count in accepted] if drafts else [],
            "acceptance_length": length,
            "step_ms": _step_ms(runs),
            "other_cores": max((r.other_cores for r in runs if r.other_cores is not None), default=None),
            "by_context": merged_bins([part for run in runs for part in run.by_context]),
        }

    def _compared(self, variant: Variant, concurrency: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        own = self.runs[variant, concurrency]
        base = self.runs.get((PLAIN, concurrency), {})
        if variant != PLAIN:
            found["speedup"] = paired(_rates(own), _rates(base))
            if base and not self.settings.temperature and self.settings.synthetic_acceptance is None:
                texts = {run.texts_sha256 for run in base.values()}
                found["same_texts"] = all(run.texts_sha256 in texts for run in own.values())
        if variant.kind == "ours":
            stock = self.runs.get((variant.model_copy(update={"kind": "stock"}), concurrency), {})
            found["against_stock"] = paired(_rates(own), _rates(stock))
        return found

    def _split(self, variant: Variant, concurrency: int) -> Split | None:
        splits = [
            split
            for engine in self.engines
            if engine.variant == variant
            for split in engine.splits
            if split.concurrency == concurrency
        ]
        return splits[-1] if splits else None

    def _traffic(self, variant: Variant) -> Traffic | None:
        found = [
            engine.traffic for engine in self.engines if engine.variant == variant and engine.traffic
        ]
        return found[-1] if found else None

    def _theory(self, row: Row, runs: Sequence[Measurement]) -> Theory | None:
        traffic = self._traffic(row.variant)
        plain_step_s = self._plain_step_s(row.concurrency)
        if row.variant.kind == "config":  # whose K may change from step to step
            return None
        if not (row.variant.k and row.acceptance_length and row.split and traffic and plain_step_s):
            return None
        return theory(
            plain_step_s=plain_step_s, split=row.split, acceptance_length=row.acceptance_length,
            traffic=traffic, plain=self._traffic(PLAIN),
            context_tokens=self._context_tokens(row, runs), concurrency=row.concurrency, k=row.variant.k,
        )  # fmt: skip

    def _plain_step_s(self, concurrency: int) -> float | None:
        """Take the split's, like for like, where there is one; it leaves out what lies between steps."""
        if split := self._split(PLAIN, concurrency):
            return split.target_s
        runs = list(self.runs.get((PLAIN, concurrency), {}).values())
        step_ms = _step_ms(runs)
        return step_ms / 1000 if step_ms else None

    def _context_tokens(self, row: Row, runs: Sequence[Measurement]) -> float:
        """Average the context over steps."""
        if len(row.by_context) > 1:
            weighted = sum((part.start + part.end) / 2 * part.steps for part in row.by_context)
            return weighted / sum(part.steps for part in row.by_context)
        outputs = sum(run.tokens for run in runs) / max(1, sum(run.requests for run in runs))
        return statistics.fmean(self.settings.prompt_tokens or [0]) + outputs / 2


def _step_ms(runs: Sequence[Measurement]) -> float | None:
    """Average the step time over steps.

    TPOT x acceptance length weighs all texts alike, and takes a cut last step for whole.
    """
    steps = sum(run.decode_steps for run in runs)
    return 1000 * sum(run.decode_s for run in runs) / steps if steps else None


def _rates(runs: dict[int, Measurement]) -> dict[int, float]:
    return {repeat: run.tokens_per_s for repeat, run in runs.items()}


def _latency(seconds: Sequence[float]) -> Latency | None:
    import numpy as np

    if not seconds:
        return None
    p50, p99 = np.percentile(seconds, (50, 99))
    return Latency(mean=1000 * statistics.fmean(seconds), p50=1000 * float(p50), p99=1000 * float(p99))
