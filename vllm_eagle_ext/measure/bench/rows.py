# SPDX-License-Identifier: Apache-2.0
"""One row per variant and concurrency: what the tables, plots and advice of a bench read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from vllm_eagle_ext.measure.bench.results import (
    ContextBin,
    Record,
    Settings,
    Split,
    Traffic,
    Variant,
)
from vllm_eagle_ext.measure.bench.theory import Theory
from vllm_eagle_ext.measure.folder import Context
from vllm_eagle_ext.measure.intervals import Interval

PLAIN = Variant(kind="none")
SCHEDULE = "num_speculative_tokens_per_batch_size"


class Spread(Record):
    """Over the measurements of a row."""

    median: float
    low: float
    high: float

    @property
    def relative(self) -> float:
        return (self.high - self.low) / self.median


class Latency(Record):
    """Milliseconds, over the requests of all measurements."""

    mean: float
    p50: float
    p99: float


class Row(Record):
    """One variant at one concurrency. Counts are sums over its measurements."""

    variant: Variant
    concurrency: int
    measured: int  # times; fewer than wanted where the bench was interrupted or an engine failed
    error: str | None = None  # of the engine that failed
    tokens_per_s: Spread | None = None
    tpot_ms: Latency | None = None
    ttft_ms: Latency | None = None
    drafts: int = 0
    accepted: list[int] = []  # per position
    acceptance: list[float] = []  # per position: accepted / drafts
    acceptance_length: float | None = None  # 1 without a draft
    step_ms: float | None = None  # per step of the target, decoding; about TPOT x acceptance length
    split: Split | None = None
    draft_share: float | None = None  # of the step
    speedup: Interval | None = None  # against no draft
    against_stock: Interval | None = None  # ours against stock, same draft and K
    by_context: list[ContextBin] = []
    other_cores: float | None = None  # the most that other processes kept busy in a measurement
    same_texts: bool | None = None  # as without a draft; None where sampling decides
    theory: Theory | None = None


class Served(Record):
    """What the engines of a variant said of themselves."""

    variant: Variant
    start_s: float  # median of them
    facts: dict[str, Any]
    traffic: Traffic | None
    gpu_memory_utilization: float | None = None  # as chosen for the last; None: the user's or vLLM's
    probe_error: str | None = None  # why traffic, or the parts of its steps, are missing


class BenchReport(Record):
    settings: Settings
    context: Context
    engines: list[Served]
    rows: list[Row]
    advice: list[str] = []

    def row(self, variant: Variant, concurrency: int) -> Row | None:
        wanted = (variant, concurrency)
        return next((row for row in self.rows if (row.variant, row.concurrency) == wanted), None)

    def plain(self, concurrency: int) -> Row | None:
        """Find the row without a draft."""
        return self.row(PLAIN, concurrency)

    def traffic(self, variant: Variant) -> Traffic | None:
        return next((served.traffic for served in self.engines if served.variant == variant), None)

    def of(self, variant: Variant) -> list[Row]:
        """List a variant's measured rows."""
        return [row for row in self.rows if row.variant == variant and row.measured]

    def pooled(self) -> dict[Variant, Pooled]:
        """Pool the measured rows of each variant."""
        return {variant: _pooled(self.of(variant)) for variant in self.variants}

    @property
    def variants(self) -> list[Variant]:
        """The variants that were measured, in the order of the bench."""
        return list(dict.fromkeys(row.variant for row in self.rows if row.measured))


@dataclass(frozen=True, slots=True)
class Pooled:
    """Acceptance of one variant over all concurrencies, which decode the same prompts."""

    acceptance_length: float | None
    acceptance: list[float]
    drafts_once: float  # of one pass over the prompts; more passes bring no new texts
    by_context: list[ContextBin]


def _pooled(rows: Sequence[Row]) -> Pooled:
    """Pool the rows of one variant."""
    drafts = sum(row.drafts for row in rows)
    longest = max((len(row.accepted) for row in rows), default=0)
    accepted = [
        sum(row.accepted[place] for row in rows if place < len(row.accepted)) for place in range(longest)
    ]
    return Pooled(
        acceptance_length=acceptance_length_of(drafts, accepted),
        acceptance=[count / drafts for count in accepted] if drafts else [],
        drafts_once=drafts / max(1, sum(row.measured for row in rows)),
        by_context=merged_bins([part for row in rows for part in row.by_context]),
    )


def labels(names: Sequence[str]) -> dict[str, str]:
    """Short names of paths or repositories: the last part, or as many as tell them apart."""
    parts = {name: PurePosixPath(name).parts for name in names}
    longest = max((len(found) for found in parts.values()), default=1)
    shown: dict[str, str] = {}
    for name, own in parts.items():
        for depth in range(1, longest + 1):
            others = [found[-depth:] for other, found in parts.items() if other != name]
            if own[-depth:] not in others:
                break
        shown[name] = "/".join(own[-depth:]).replace("//", "/") or name
    return shown


def shown_k(settings: Settings, variant: Variant) -> str:
    """K of a variant; of a config with several all of them."""
    if variant.kind != "config" or settings.config is None:
        return str(variant.k)
    schedule = settings.config.speculative_config.get(SCHEDULE) or [[1, 1, variant.k]]
    return "/".join(str(k) for k in dict.fromkeys(entry[2] for entry in schedule))


def variant_name(variant: Variant, shown: dict[str, str]) -> str:
    """A variant's name with its draft's label."""
    return variant.model_copy(update={"draft": shown.get(str(variant.draft))}).name


def acceptance_length_of(drafts: int, accepted: Sequence[int]) -> float | None:
    return 1 + sum(accepted) / drafts if drafts else None


def merged_bins(parts: Sequence[ContextBin]) -> list[ContextBin]:
    sums: dict[tuple[int, int], tuple[int, int]] = {}
    for part in parts:
        steps, tokens = sums.get((part.start, part.end), (0, 0))
        sums[part.start, part.end] = (steps + part.steps, tokens + part.tokens)
    return [
        ContextBin(start=start, end=end, steps=steps, tokens=tokens)
        for (start, end), (steps, tokens) in sorted(sums.items())
    ]
