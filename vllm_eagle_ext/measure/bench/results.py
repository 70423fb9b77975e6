# SPDX-License-Identifier: Apache-2.0
"""What was asked, what was measured and what follows from it: the fields of report.json.

A report holds one list of rows. A row is one variant at one load, and holds its measurements.

How much faster follows from pairs: measurement i of one variant is divided by measurement i of the
other. They ran close to each other, so a machine that drifts moves both. The interval of the median lies
between two order statistics, and assumes no distribution.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict

from vllm_eagle_ext.measure.engine.probe import schedule_of
from vllm_eagle_ext.options import KEY

COVERAGE = 0.95  # where the number of pairs allows it: from 6


@dataclass(frozen=True, slots=True)
class Interval:
    """`coverage` is that of low..high: the whole range where the pairs are too few for COVERAGE."""

    median: float
    low: float
    high: float
    coverage: float  # 0 of one pair
    pairs: int

    def overlaps(self, other: Interval) -> bool:
        return self.low <= other.high and other.low <= self.high

    @property
    def is_interval(self) -> bool:
        return self.pairs > 1  # one tells no error


def paired(values: Mapping[int, float], base: Mapping[int, float]) -> Interval | None:
    """Return the interval of values / base, both by number, over the measurements that both have."""
    ratios = [values[repeat] / base[repeat] for repeat in sorted(values.keys() & base.keys())]
    return median_interval(ratios) if ratios else None


def median_interval(values: Sequence[float]) -> Interval:
    """Return the narrowest two order statistics of equal ranks that cover COVERAGE, or the range."""
    ordered, n = sorted(values), len(values)

    def coverage(rank: int) -> float:
        # The median lies outside where fewer than `rank` values lie on one side of it.
        return 1 - 2 * sum(math.comb(n, below) for below in range(rank)) / 2**n

    rank = 1
    while coverage(rank + 1) >= COVERAGE:
        rank += 1
    low, high = ordered[rank - 1], ordered[n - rank]
    return Interval(statistics.median(ordered), low, high, coverage(rank), pairs=n)


ComparedKind = Literal["none", "stock", "ours"]  # no draft, stock vLLM, this package
# The others are this package too: each K in one engine, vLLM's schedule, its adaptive verification.
VariantKind = Literal[ComparedKind, "held", "schedule", "adaptive"]
KINDS: tuple[ComparedKind, ...] = get_args(ComparedKind)
# Whole texts; of --schedule each K, and what may be served.
Stage = Literal["texts", "sweep", "closing"]
Schedule = tuple[tuple[int, int, int], ...]  # first and last number of requests, K

REPORT = "report.json"
SCHEDULE_KEY = "num_speculative_tokens_per_batch_size"
ADAPTIVE_KEY = "enable_adaptive_verification"


class Record(BaseModel):
    # Reports of earlier versions have keys that are no longer measured.
    model_config = ConfigDict(frozen=True, extra="ignore")


class Context(Record):
    """What it ran on."""

    command: str
    started: str  # ISO 8601, UTC
    versions: dict[str, str]
    device: str
    environment: dict[str, str]  # VLLM_*, OMP_*, CUDA_VISIBLE_DEVICES
    cores: int | None = None
    load_average: float | None = None  # of one minute, before the first engine


class Variant(Record):
    """What is served: by whom, with which draft and K."""

    kind: VariantKind
    draft: str | None = None  # None without a draft
    k: int = 0  # of a schedule the largest
    schedule: Schedule = ()

    @property
    def has_plugin(self) -> bool:
        return self.kind not in ("none", "stock")

    @property
    def name(self) -> str:
        return self.kind if self.draft is None else f"{self.kind} {self.draft} K={self.k}"

    @property
    def length(self) -> str:
        """Name what is drafted, where only this package serves one draft."""
        named = {"none": "no draft", "schedule": "schedule", "adaptive": "adaptive verification"}
        return named.get(self.kind, f"K={self.k}")


PLAIN = Variant(kind="none")


class ServedLoad(Record):
    """How busy an engine is: requests at a time, and the context that they begin with."""

    concurrency: int
    context: int = 0  # tokens that prompts have at least; 0: they are as they are


class Settings(Record):
    """What was asked for, with nothing left open."""

    command: Literal["bench", "tune"] = "bench"  # "tune" was bench --schedule
    target: str
    drafts: list[str]
    served: dict[str, dict[str, Any]]  # speculative_config by draft, without K
    kinds: list[ComparedKind]
    ks: list[int]  # with 0 of --schedule, where nothing is drafted
    concurrency: list[int]
    contexts: list[int] = [0]
    repeats: int = 1  # engines of each kind
    rounds: int  # measurements of an engine at each load
    together: bool  # engines that are compared run at the same time
    max_tokens: int = 0  # of whole texts
    steps: int = 0  # of decoding that are timed; 0: whole texts are
    surface_only: bool = False  # only step times
    adaptive: bool = False  # vLLM's adaptive verification is measured too
    temperature: float
    seed: int
    ignore_eos: bool
    prompts: str  # a file, "built-in" or "random token ids"
    num_prompts: int
    prompts_sha256: str  # of the token ids
    categories: list[str | None] = []  # of the prompts
    chat_template: bool
    thinking: bool | None  # None: the template's own default
    engine: dict[str, Any]  # further keywords of LLM()
    eagle_ext: dict[str, Any]
    synthetic_acceptance: list[float] | None = None  # per position of the largest K; or [length]
    dummy: bool = False

    @property
    def runs(self) -> int:
        return self.repeats * self.rounds  # of one variant at one load

    @property
    def loads(self) -> list[ServedLoad]:
        return [ServedLoad(concurrency=c, context=at) for at in self.contexts for c in self.concurrency]


class EngineRecord(Record):
    """One engine, as it started and ended."""

    stage: Stage
    variant: Variant
    repeat: int  # counts engines
    start_s: float
    gpu_memory_utilization: float | None = None  # as chosen here; None: the user's or vLLM's own
    error: str | None = None  # it did not start, or not reach its end
    facts: dict[str, Any] = {}  # drafter class, state scheme, as the workers say


class Measurement(Record):
    """One variant at one load, in one round."""

    stage: Stage
    variant: Variant
    load: ServedLoad
    repeat: int  # counts the rounds of all engines of its kind
    tokens_per_s: float  # of all requests
    step_s: float | None  # a decoding step of the target
    drafts: int = 0  # requests times steps that verified drafts
    accepted: list[int] = []  # of them, per position
    # Per whole text with drafts, in the order of the prompts: steps by how many drafts they accepted.
    histograms: list[list[int]] = []
    texts_sha256: str | None = None  # of the token ids of all whole texts, in the order of the prompts
    other_cores: float | None = None  # that processes other than these kept busy meanwhile


class Spread(Record):
    """Over the measurements of a row."""

    median: float
    low: float
    high: float

    @property
    def relative(self) -> float:
        return (self.high - self.low) / self.median


class Row(Record):
    """One variant at one load. Counts are sums over its measurements."""

    stage: Stage
    variant: Variant
    concurrency: int
    context: int
    measured: int  # times; fewer than wanted where it was interrupted or an engine failed
    error: str | None = None  # of the engine that failed
    tokens_per_s: Spread | None = None
    step_ms: float | None = None  # median over the measurements
    speedup: Interval | None = None  # against no draft
    against_stock: Interval | None = None  # ours against stock, same draft and K
    step_ratio: Interval | None = None  # step times over no draft's: the acceptance length that pays
    acceptance_length: float | None = None  # 1 where nothing is drafted
    acceptance: list[float] = []  # per position: accepted / drafts
    drafts: int = 0
    accepted: list[int] = []  # per position
    requests_by_length: dict[str, float] = {}  # acceptance length, from-to -> whole texts
    length_by_category: dict[str, float] = {}  # acceptance length
    same_texts: bool | None = None  # as without a draft; None where sampling decides
    other_cores: float | None = None  # the most that other processes kept busy in a measurement
    runs: list[Measurement] = []

    @property
    def load(self) -> ServedLoad:
        return ServedLoad(concurrency=self.concurrency, context=self.context)


class Config(Record):
    """What to serve with; both are None without a draft."""

    speculative_config: dict[str, Any] | None = None
    additional_config: dict[str, Any] | None = None


class TunedChoice(Record):
    """What to serve with, and where it is slower than no draft: by its whole interval, or perhaps."""

    served: Variant
    config: Config
    gain: Interval | None = None  # over no draft, mean over the loads of each round
    slower: list[ServedLoad] = []
    undecided: list[ServedLoad] = []  # only by the median, while the interval reaches 1

    @property
    def exit_code(self) -> int:
        if self.slower:
            return 1
        return 2 if self.undecided else 0


class Report(Record):
    settings: Settings
    context: Context
    engines: list[EngineRecord]
    rows: list[Row]
    advice: list[str] = []
    choice: TunedChoice | None = None  # of --schedule

    def row(self, stage: Stage, variant: Variant, load: ServedLoad) -> Row | None:
        wanted = (stage, variant, load)
        return next((row for row in self.rows if (row.stage, row.variant, row.load) == wanted), None)

    def of(self, stage: Stage) -> list[Row]:
        """List the rows of a stage that were measured."""
        return [row for row in self.rows if row.stage == stage and row.measured]


def labels(names: Sequence[str]) -> dict[str, str]:
    """Shorten names of paths or repositories to the last part where that tells them apart."""
    parts = {name: PurePosixPath(name).name or name for name in names}
    counts = Counter(parts.values())
    return {name: part if counts[part] == 1 else name for name, part in parts.items()}


def sha256_of(ids: list[list[int]]) -> str:
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()


def config_of(settings: Settings, variant: Variant) -> Config:
    """Give the two configs that a variant is served with; other plugins keep their keys."""
    additional = dict(settings.engine.get("additional_config") or {})
    if variant.has_plugin and settings.eagle_ext:
        additional[KEY] = settings.eagle_ext
    if variant.draft is None:
        return Config(additional_config=additional or None)
    speculative = {**settings.served[variant.draft], "num_speculative_tokens": variant.k}
    if settings.dummy:
        # A draft with dummy weights shares the target's head: vLLM asks its tensors for one.
        speculative["draft_load_config"] = {"load_format": "auto"}
    if variant.kind == "held":
        speculative |= {"num_speculative_tokens": max(settings.ks)}
        speculative[SCHEDULE_KEY] = schedule_of(settings.ks)
    elif variant.kind == "schedule":
        speculative[SCHEDULE_KEY] = [list(entry) for entry in variant.schedule]
    elif variant.kind == "adaptive":
        speculative[ADAPTIVE_KEY] = True
    if (given := settings.synthetic_acceptance) is not None:
        speculative["rejection_sample_method"] = "synthetic"
        if given[0] > 1:  # one length, of which a K takes what it can reach
            speculative["synthetic_acceptance_length"] = min(given[0], variant.k + 1)
        else:
            speculative["synthetic_acceptance_rates"] = given[: variant.k]
    return Config(speculative_config=speculative, additional_config=additional or None)
