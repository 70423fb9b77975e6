"""Reports of benches that nothing was measured for: times and acceptance by formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from vllm_eagle_ext.measure.bench.printed import advice
from vllm_eagle_ext.measure.bench.results import (
    PLAIN,
    Context,
    EngineRecord,
    Measurement,
    Report,
    ServedLoad,
    Settings,
    Stage,
    Variant,
)
from vllm_eagle_ext.measure.bench.runner import swept, variants
from vllm_eagle_ext.measure.bench.summary import choose_served, summarise, surface_of, worth_serving

FAST, SLOW = "org/fast-draft", "org/slow-draft"
OURS, STOCK = (Variant(kind=kind, draft=FAST, k=3) for kind in ("ours", "stock"))
QUIET = (1.0, 1.01, 1.02)  # noise that is none to speak of
_CORE = "(EngineCore pid=9) ERROR 01-01 [core.py:1] "
_POINTER = (
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)
STOCK_ERROR = "\n".join(  # the engine's, and the 25 last lines of its log
    [
        _POINTER,
        "see the end of its log, bench-x/logs/stock.log:",
        *[f'{_CORE}  File "vllm/v1/engine/core.py", line {number}, in run' for number in range(13)],
        f"{_CORE}ValueError: stock cannot read five aux layers",
        "Traceback (most recent call last):",
        *[f'  File "vllm/entrypoints/llm.py", line {number}, in __init__' for number in range(9)],
        _POINTER,
    ]
)
REQUESTS, TOKENS = 8, 100  # tokens per request
STEPS = 1000


def load(concurrency: int, context: int = 0) -> ServedLoad:
    return ServedLoad(concurrency=concurrency, context=context)


def settings_of(**given: Any) -> Settings:
    drafts = given.get("drafts", [FAST])
    usual: dict[str, Any] = {
        "target": "org/target-8B", "drafts": drafts,
        "served": {draft: {"method": "eagle3", "model": draft} for draft in drafts},
        "kinds": ["none", "stock", "ours"], "ks": [3], "concurrency": [1], "rounds": 1,
        "together": False, "temperature": 0.0, "seed": 0, "ignore_eos": True, "prompts": "built-in",
        "num_prompts": REQUESTS, "prompts_sha256": "0", "chat_template": True, "thinking": None,
        "engine": {}, "eagle_ext": {},
    }  # fmt: skip
    return Settings(**usual | given)


def context(**given: Any) -> Context:
    usual: dict[str, Any] = {
        "command": "vllm-eagle bench --target org/target-8B", "started": "2030-01-01T00:00:00+00:00",
        "versions": {"vllm": "0.32.0"}, "device": "a device", "environment": {},
    }  # fmt: skip
    return Context(**usual | given)


@dataclass
class MadeUp:
    """Steps of known length. Machine noise is `noise` of a repeat, alike for all that run in it."""

    drafts: tuple[str, ...] = (FAST,)
    ks: tuple[int, ...] = (3,)
    concurrency: tuple[int, ...] = (1,)
    repeats: int = 3
    rounds: int = 1
    temperature: float = 0.0
    kinds: tuple[str, ...] = ("none", "stock", "ours")
    stock_error: str | None = None
    synthetic: list[float] | None = None
    first: dict[str, float] = field(default_factory=lambda: {FAST: 0.8, SLOW: 0.5})  # of a position
    noise: tuple[float, ...] = (1.0, 1.05, 0.97, 1.01, 1.02, 0.99, 1.03, 0.98, 1.04, 0.96)
    jitter: float = 0.0  # of each engine's own
    plain_s: float = 0.010
    verify_per_row: float = 0.01  # of a plain step, per row of the batch beyond the first
    draft_s: float = 0.0005  # per drafted token
    rest_s: float = 0.001
    stock_extra_s: float = 0.0002
    other_cores: float | None = None
    categories: tuple[str | None, ...] = ()  # of the prompts, and steps of each by accepted drafts
    histograms: tuple[list[int], ...] = ()

    def settings(self) -> Settings:
        return settings_of(
            drafts=list(self.drafts), ks=list(self.ks), concurrency=list(self.concurrency),
            repeats=self.repeats, rounds=self.rounds, temperature=self.temperature,
            kinds=list(self.kinds), synthetic_acceptance=self.synthetic, max_tokens=TOKENS,
            categories=list(self.categories),
        )  # fmt: skip

    def step_s(self, variant: Variant, concurrency: int) -> float:
        target_s = self.plain_s * (1 + self.verify_per_row * (concurrency * (1 + variant.k) - 1))
        extra = self.stock_extra_s if variant.kind == "stock" else 0
        return target_s + self.draft_s * variant.k + self.rest_s + extra

    def measurement(self, variant: Variant, repeat: int, concurrency: int) -> Measurement:
        drafts = 10_000 if variant.k else 0
        rates = [self.first[str(variant.draft)] ** (place + 1) for place in range(variant.k)]
        accepted = [round(rate * drafts) for rate in rates]
        length = 1 + sum(accepted) / drafts if drafts else 1.0
        own = 1 + self.jitter * Random(f"{variant.name} {repeat} {concurrency}").uniform(-1, 1)
        step_s = self.step_s(variant, concurrency) * self.noise[repeat] * own
        return Measurement(
            stage="texts", variant=variant, load=load(concurrency), repeat=repeat,
            tokens_per_s=concurrency * length / step_s, step_s=step_s, drafts=drafts,
            accepted=accepted, texts_sha256="same", other_cores=self.other_cores,
            histograms=list(self.histograms) if variant.k else [],
        )  # fmt: skip

    def engine(self, variant: Variant, repeat: int) -> EngineRecord:
        record = EngineRecord(stage="texts", variant=variant, repeat=repeat, start_s=32.0)
        if variant.kind == "stock" and self.stock_error:
            return record.model_copy(update={"error": self.stock_error})
        return record.model_copy(update={"facts": {"drafter": "X"}})

    def records(self) -> tuple[list[EngineRecord], list[Measurement]]:
        engines, measurements = [], []
        for repeat in range(self.repeats):
            for variant in variants(self.settings()):
                engines.append(self.engine(variant, repeat))
                if variant.kind != "stock" or self.stock_error is None:
                    for number in range(repeat * self.rounds, (repeat + 1) * self.rounds):
                        measurements += [self.measurement(variant, number, c) for c in self.concurrency]
        return engines, measurements

    def report(self, change: Callable[[Any], Any] = lambda record: record, **given: Any) -> Report:
        """Its report, with every engine and measurement changed."""
        engines, measurements = self.records()
        report = summarise(
            self.settings(), context(**given), [change(r) for r in engines],
            [changed for r in measurements if (changed := change(r)) is not None],
        )  # fmt: skip
        return report.model_copy(update={"advice": advice(report)})


def changing(variant: Variant, **update: Any) -> Callable[[Any], Any]:
    """Changes a variant's measurements."""

    def change(record: Any) -> Any:
        mine = isinstance(record, Measurement) and record.variant == variant
        return record.model_copy(update=update) if mine else record

    return change


def expected_length(rate: float, k: int) -> float:
    """The acceptance length of K tokens that are each accepted with this probability."""
    return sum(rate**position for position in range(k + 1))


def memory_bound(at: ServedLoad, k: int) -> float:
    """A step is as long as the longer of reading weights and computing rows; the draft on top."""
    rows = at.concurrency * (k + 1)
    return max(0.008, 0.001 * rows) + 0.0005 * k + 1e-6 * at.context


@dataclass
class MadeUpTune:
    """`noise` of a turn is that of the machine, alike for all that take turns in it."""

    ks: tuple[int, ...] = (0, 1, 2, 4)
    concurrency: tuple[int, ...] = (1, 4, 16)
    contexts: tuple[int, ...] = (64, 512)
    rounds: int = 6
    rate: float = 0.7
    together: bool = True
    surface_only: bool = False
    adaptive: bool = False
    noise: float = 0.3
    own_noise: float = 0.01
    step_s: Callable[[ServedLoad, int], float] = memory_bound
    awake_s: float = 0.0005  # what the drafter takes at K = 0
    adaptive_gain: float = 1.0  # over the best K
    served_slower: float = 1.0  # steps as served over those that the sweep saw
    random: Random = field(default_factory=lambda: Random(0))

    def settings(self) -> Settings:
        return settings_of(
            kinds=["none", "ours"], ks=list(self.ks),
            concurrency=list(self.concurrency), contexts=list(self.contexts), rounds=self.rounds,
            steps=STEPS, together=self.together, surface_only=self.surface_only,
            adaptive=self.adaptive, chat_template=False,
        )  # fmt: skip

    def cells(self, stage: Stage, served: Iterable[Variant]) -> list[Measurement]:
        served, cells = list(served), []
        for number in range(self.rounds):
            for at in self.settings().loads:
                machine = 1 + self.noise * self.random.random()
                cells += [self._cell(stage, v, at, number, machine) for v in served]
        return cells

    def _cell(
        self, stage: Stage, served: Variant, at: ServedLoad, number: int, machine: float
    ) -> Measurement:
        k = next((k for _, last, k in served.schedule if at.concurrency <= last), served.k)
        if served.kind == "adaptive":
            k = max(self.ks, key=lambda k: expected_length(self.rate, k) / self.step_s(at, k))
        seconds = self.step_s(at, k) + (self.awake_s if served != PLAIN and not k else 0)
        if served.kind == "adaptive":
            seconds /= self.adaptive_gain
        if stage == "closing" and served != PLAIN:
            seconds *= self.served_slower
        seconds *= machine * (1 + self.own_noise * self.random.random())
        drafts = STEPS * at.concurrency if k else 0
        return Measurement(
            stage=stage, variant=served, load=at, repeat=number, step_s=seconds,
            tokens_per_s=at.concurrency * expected_length(self.rate, k) / seconds, drafts=drafts,
            accepted=[round(self.rate ** (1 + j) * drafts) for j in range(k)], other_cores=0.0,
        )  # fmt: skip

    def sweep(self) -> Report:
        return self.report_of(self.cells("sweep", swept(self.settings())))

    def report_of(self, cells: list[Measurement]) -> Report:
        device = context(device="a processor, 2 cores", cores=2, load_average=0.1)
        return summarise(self.settings(), device, [], cells)

    def report(self) -> Report:
        """Both stages, and the choice."""
        cells, settings = self.cells("sweep", swept(self.settings())), self.settings()
        if self.surface_only:
            return self.report_of(cells)
        if served := worth_serving(settings, surface_of(self.report_of(cells))):
            cells += self.cells("closing", [PLAIN, *served])
        report = self.report_of(cells)
        return report.model_copy(update={"choice": choose_served(report)})
