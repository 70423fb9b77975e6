# SPDX-License-Identifier: Apache-2.0
"""Metrics of what an engine decoded, measurements into rows, and what follows from rows of --schedule.

A step that drafts and verifies K tokens takes T(K), one without a draft T(0). With an acceptance length
E drafting pays where E is above T(K) / T(0), whichever draft of this shape it is (Leviathan et al. 2023,
section 3.3, with measured times): the surface of break-even. It chooses what the closing round serves.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vllm_eagle_ext.measure.bench.results import (
    PLAIN,
    Context,
    EngineRecord,
    Interval,
    Measurement,
    Report,
    Row,
    Schedule,
    ServedLoad,
    Settings,
    Spread,
    Stage,
    TunedChoice,
    Variant,
    config_of,
    median_interval,
    paired,
    sha256_of,
)
from vllm_eagle_ext.measure.engine.load import Measured, TimedSteps, added, spread_of

HYSTERESIS = 1.01  # another K must promise so much more than that of fewer requests
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
    # The rows of each stage in the order of its loads: no draft, drafts, K and, of one K, stock.
    kinds = ["none", "stock", "ours", "held", "schedule", "adaptive"]

    def order(variant: Variant) -> tuple[int, bool, int, int]:
        draft = settings.drafts.index(variant.draft) if variant.draft else -1
        return draft, variant.kind in kinds[4:], variant.k, kinds.index(variant.kind)

    measured = [(run.stage, run.variant) for run in measurements]
    rows = []
    for stage in dict.fromkeys([run.stage for run in measurements] + [e.stage for e in engines]):
        served = {variant for at, variant in [*failed, *measured] if at == stage}
        for load in settings.loads:
            for variant in sorted(served, key=order):
                row = Row(
                    stage=stage, variant=variant, concurrency=load.concurrency, context=load.context,
                    measured=0, error=failed.get((stage, variant)),
                )  # fmt: skip
                rows.append(row.model_copy(update=_figures(settings, row, runs)))
    return Report(settings=settings, context=context, engines=list(engines), rows=rows)


def _figures(settings: Settings, row: Row, runs: Runs) -> dict[str, Any]:
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
        figures["speedup"] = _ratio(own, base, "tokens_per_s")
        figures["step_ratio"] = _ratio(own, base, "step_s")
        if stage == "texts" and not settings.temperature and settings.synthetic_acceptance is None:
            texts = {run.texts_sha256 for run in base.values()}
            figures["same_texts"] = all(run.texts_sha256 in texts for run in own.values())
    if variant.kind == "ours":
        stock = runs.get((stage, variant.model_copy(update={"kind": "stock"}), load), {})
        figures["against_stock"] = _ratio(own, stock, "tokens_per_s")
    return figures


def _metrics(variant: Variant, runs: list[Measurement]) -> dict[str, Any]:
    drafts = sum(run.drafts for run in runs)
    accepted = added(run.accepted for run in runs)
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
        "other_cores": max(others, default=None),
    }


def metrics_of_texts(measured: Measured) -> dict[str, Any]:
    answers = measured.answers
    steps = sum(len(answer.steps) - 1 for answer in answers if answer.steps)
    decode_s = sum(answer.decode_s for answer in answers)
    return {
        "tokens_per_s": sum(len(answer.tokens) for answer in answers) / measured.seconds,
        # TPOT x acceptance length weighs all texts alike, and takes a cut last step for whole.
        "step_s": decode_s / steps if steps else None,
        "drafts": measured.drafts,
        "accepted": measured.accepted,
        "histograms": measured.histograms if any(measured.histograms) else [],
        "texts_sha256": sha256_of(measured.texts),
    }


def metrics_of_steps(waves: Sequence[TimedSteps]) -> dict[str, Any]:
    seconds = [second for wave in waves for second in wave.seconds]
    step_s = statistics.median(seconds)
    return {
        "tokens_per_s": sum(wave.tokens for wave in waves) / len(seconds) / step_s,
        "step_s": step_s,
        "drafts": sum(wave.drafts for wave in waves),
        "accepted": added(wave.accepted for wave in waves),
    }


def acceptance_length_of(drafts: int, accepted: Sequence[int]) -> float | None:
    return 1 + sum(accepted) / drafts if drafts else None


def pooled(rows: Sequence[Row]) -> tuple[int, list[int]]:
    """Add up drafts, and those accepted per position."""
    return sum(row.drafts for row in rows), added(row.accepted for row in rows)


def _ratio(
    own: dict[int, Measurement], base: dict[int, Measurement], metric: Literal["tokens_per_s", "step_s"]
) -> Interval | None:
    values, others = (
        {repeat: value for repeat, run in runs.items() if (value := getattr(run, metric)) is not None}
        for runs in (own, base)
    )
    return paired(values, others)


@dataclass(frozen=True, slots=True)
class Point:
    k: int
    needed: Interval  # acceptance length: step times over those without a draft, paired by round
    length: float | None  # acceptance length that was measured; None where only times were

    @property
    def gain(self) -> float | None:
        """Return tokens per second over those without a draft, as times and acceptance length say."""
        return None if self.length is None else self.length / self.needed.median


Surface = Mapping[tuple[ServedLoad, int], Point]


def surface_of(report: Report) -> Surface:
    """Return every K at every load for which both step times are known.

    The acceptance length is that of all loads of one context: the number of requests does not change it.
    """
    rows = [row for row in report.of("sweep") if row.variant.kind == "held"]
    surface = {}
    for row in rows:
        alike = [r for r in rows if (r.variant, r.context) == (row.variant, row.context)]
        length = acceptance_length_of(*pooled(alike)) if row.variant.k else 1.0
        if row.step_ratio is not None:
            measured = None if report.settings.surface_only else length
            surface[row.load, row.variant.k] = Point(row.variant.k, row.step_ratio, measured)
    return surface


def _mean(gains: Sequence[float]) -> float:
    return statistics.geometric_mean(gains) if gains else 0.0


def gain_over_loads(report: Report, served: Variant) -> Interval | None:
    """Give the gain over no draft in the closing round: the mean over the loads, of each round."""
    by_round: dict[int, list[float]] = {}
    for row in report.of("closing"):
        plain = report.row("closing", PLAIN, row.load)
        if row.variant == served and plain:
            base = {run.repeat: run.tokens_per_s for run in plain.runs}
            for run in row.runs:
                if run.repeat in base:
                    ratio = run.tokens_per_s / base[run.repeat]
                    by_round.setdefault(run.repeat, []).append(ratio)
    means = [_mean(ratios) for ratios in by_round.values()]
    return median_interval(means) if means else None


def best_by_requests(surface: Surface, ks: Sequence[int], levels: Sequence[int]) -> dict[int, int]:
    """Choose a K for each number of requests, by the mean gain over the contexts.

    The K of the level before stays where another one promises no more than HYSTERESIS.
    """
    chosen: dict[int, int] = {}
    for level in sorted(levels):
        gains = {k: _mean(_gains(surface, k, level)) for k in ks}
        best = max(gains, key=lambda k: gains[k])
        earlier = next(reversed(chosen.values()), best)
        chosen[level] = earlier if gains[best] <= HYSTERESIS * gains[earlier] else best
    return chosen


def merged_schedule(best: Mapping[int, int]) -> Schedule:
    """Make a schedule as vLLM reads it, `num_speculative_tokens_per_batch_size`.

    Between two measured numbers of requests the K of the larger one holds: there it was shown to pay.
    vLLM carries the last K forward.
    """
    entries: list[tuple[int, int, int]] = []
    first = 1
    for level in sorted(best):
        if entries and entries[-1][2] == best[level]:
            first, *_ = entries.pop()
        entries.append((first, level, best[level]))
        first = level + 1
    return tuple(entries)


def worth_serving(settings: Settings, surface: Surface) -> list[Variant]:
    """List what may be printed; nothing where no K pays at any load, unless it was asked for."""
    (draft,) = settings.drafts
    fixed = max(filter(None, settings.ks), key=lambda k: _mean(_gains(surface, k)))
    best = best_by_requests(surface, settings.ks, settings.concurrency)
    served = []
    if any(gain > 1 for gain in _gains(surface, fixed)) or any(best.values()):
        served.append(Variant(kind="ours", draft=draft, k=fixed))
    if any(best.values()) and set(best.values()) != {fixed}:
        schedule = merged_schedule(best)
        served.append(Variant(kind="schedule", draft=draft, k=max(best.values()), schedule=schedule))
    if settings.adaptive:
        served.append(Variant(kind="adaptive", draft=draft, k=max(settings.ks)))
    return served


def choose_served(report: Report) -> TunedChoice:
    """Choose what is slower than no draft at the fewest loads, and of those what gains most.

    No draft is printed where everything is slower at every load, K = 0 in an engine with a draft too.
    """
    # The gains of the closing round.
    measured: dict[Variant, dict[ServedLoad, Interval]] = {}
    for row in report.of("closing"):
        if row.speedup is not None:
            measured.setdefault(row.variant, {})[row.load] = row.speedup
    every = [gain for gains in measured.values() for gain in gains.values()]
    if all(gain.median < 1 for gain in every) and (not every or any(gain.high < 1 for gain in every)):
        return TunedChoice(served=PLAIN, config=config_of(report.settings, PLAIN))
    # The best of them, the first of equals: one K is simpler than a schedule.
    means = {served: gain_over_loads(report, served) for served in measured}
    slower_at = {
        served: [load for load, gain in gains.items() if gain.high < 1]
        for served, gains in measured.items()
    }
    medians = {served: gain.median if gain else 0.0 for served, gain in means.items()}
    best = max(measured, key=lambda served: (-len(slower_at[served]), medians[served]))
    return TunedChoice(
        served=best,
        config=config_of(report.settings, best),
        gain=means[best],
        slower=slower_at[best],
        undecided=[load for load, gain in measured[best].items() if gain.median < 1 <= gain.high],
    )


def _gains(surface: Surface, k: int, level: int | None = None) -> list[float]:
    return [
        point.gain
        for (load, length), point in surface.items()
        if length == k and level in (None, load.concurrency) and point.gain is not None
    ]
