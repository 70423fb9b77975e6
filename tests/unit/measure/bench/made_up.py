"""Folders of a bench that nothing was measured for."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from vllm_eagle_ext.measure.bench.results import (
    ContextBin,
    EngineRecord,
    Folder,
    GivenConfig,
    Measurement,
    Settings,
    Split,
    Traffic,
    Variant,
)
from vllm_eagle_ext.measure.bench.schedule import variants
from vllm_eagle_ext.measure.bench.summary import summarise
from vllm_eagle_ext.measure.folder import Context

FAST, SLOW = "org/fast-draft", "org/slow-draft"
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
TRAFFIC = Traffic(
    target_weights=10**9,
    target_experts=0,
    experts=0,
    experts_per_token=0,
    draft_weights=5 * 10**7,
    draft_fusion=0,
    target_kv_per_token=10**5,
    draft_kv_per_token=4000,
    state_per_request=0,
    state_blocks=0,
    parallel_drafts=False,
    copy_bytes_per_s=2e11,
)


@dataclass
class MadeUp:
    """Steps of known length. Machine noise is `noise` of a repeat, alike for all that run in it."""

    drafts: tuple[str, ...] = (FAST,)
    ks: tuple[int, ...] = (3,)
    concurrency: tuple[int, ...] = (1,)
    repeats: int = 3
    rounds: int = 1
    together: bool = False
    temperature: float = 0.0
    kinds: tuple[str, ...] = ("none", "stock", "ours")
    config: GivenConfig | None = None
    stock_error: str | None = None
    probe_error: str | None = None
    synthetic: list[float] | None = None
    first: dict[str, float] = field(default_factory=lambda: {FAST: 0.8, SLOW: 0.5})  # of a position
    noise: tuple[float, ...] = (1.0, 1.05, 0.97, 1.01, 1.02, 0.99, 1.03, 0.98, 1.04, 0.96)
    jitter: float = 0.0  # of each engine's own
    plain_s: float = 0.010
    verify_per_row: float = 0.01  # of a plain step, per row of the batch beyond the first
    draft_s: float = 0.0005  # per drafted token
    rest_s: float = 0.001
    stock_extra_s: float = 0.0002
    fading: float = 1.0  # acceptance length of the last context bin over that of the first
    bins: int = 1
    drafter: str = "X"  # class that serves the drafts
    eagle_ext: dict[str, Any] = field(default_factory=dict)

    def settings(self) -> Settings:
        return Settings(
            target="org/target-8B",
            drafts=list(self.drafts),
            method={draft: "eagle3" for draft in self.drafts},
            ks=list(self.ks),
            concurrency=list(self.concurrency),
            repeats=self.repeats,
            rounds=self.rounds,
            together=self.together,
            max_tokens=TOKENS,
            temperature=self.temperature,
            seed=0,
            ignore_eos=True,
            prompts="built-in",
            num_prompts=REQUESTS,
            prompts_sha256="0",
            prompt_tokens=[40] * REQUESTS,
            chat_template=True,
            thinking=None,
            engine={},
            speculative={},
            eagle_ext=self.eagle_ext,
            synthetic_acceptance=self.synthetic,
            dummy=False,
            kinds=list(self.kinds),
            config=self.config,
        )

    def context(self) -> Context:
        return Context(
            command="vllm-eagle bench --target org/target-8B",
            started="2030-01-01T00:00:00+00:00",
            versions={"vllm": "0.32.0"},
            device="a device",
            environment={},
        )

    def acceptance(self, variant: Variant) -> list[float]:
        return [self.first[variant.draft] ** (place + 1) for place in range(variant.k)]

    def parts(self, variant: Variant, concurrency: int) -> tuple[float, float]:
        """Seconds of target and draft."""
        rows = concurrency * (1 + variant.k)
        return self.plain_s * (1 + self.verify_per_row * (rows - 1)), self.draft_s * variant.k

    def step_s(self, variant: Variant, concurrency: int) -> float:
        extra = self.stock_extra_s if variant.kind == "stock" else 0
        return sum(self.parts(variant, concurrency)) + self.rest_s + extra

    def measurement(self, variant: Variant, repeat: int, concurrency: int) -> Measurement:
        drafts = 10_000 if variant.k else 0
        accepted = [round(rate * drafts) for rate in self.acceptance(variant)] if variant.k else []
        acceptance_length = 1 + sum(accepted) / drafts if drafts else 1.0
        own = 1 + self.jitter * Random(f"{variant.name} {repeat} {concurrency}").uniform(-1, 1)
        step_s = self.step_s(variant, concurrency) * self.noise[repeat] * own
        tpot, tokens = step_s / acceptance_length, REQUESTS * TOKENS
        steps = round(REQUESTS * (TOKENS - 1) / acceptance_length)
        return Measurement(
            variant=variant,
            repeat=repeat,
            concurrency=concurrency,
            seconds=tokens * tpot / concurrency,
            requests=REQUESTS,
            tokens=tokens,
            decode_s=steps * step_s,
            decode_steps=steps,
            ttft_s=[0.02] * REQUESTS,
            tpot_s=[tpot] * REQUESTS,
            drafts=drafts,
            drafted=drafts * variant.k,
            accepted=accepted,
            by_context=self._by_context(acceptance_length),
            texts_sha256="same",
        )

    def _by_context(self, acceptance_length: float) -> list[ContextBin]:
        edges = [0] + [128 << place for place in range(self.bins)]
        fade = [self.fading ** (place / max(1, self.bins - 1)) for place in range(self.bins)]
        return [
            ContextBin(start=start, end=end, steps=1000, tokens=round(1000 * acceptance_length * part))
            for start, end, part in zip(edges, edges[1:], fade, strict=False)
        ]

    def engine(self, variant: Variant, repeat: int) -> EngineRecord:
        if variant.kind == "stock" and self.stock_error:
            return EngineRecord(variant=variant, repeat=repeat, start_s=5.0, error=self.stock_error)
        if repeat:
            return EngineRecord(variant=variant, repeat=repeat, start_s=30.0)
        if self.probe_error:
            return EngineRecord(variant=variant, repeat=0, start_s=32.0, probe_error=self.probe_error)
        splits = []
        for level in self.concurrency:
            target_s, draft_s = self.parts(variant, level)
            splits.append(Split(concurrency=level, steps=50, target_s=target_s, draft_s=draft_s))
        return EngineRecord(
            variant=variant,
            repeat=0,
            start_s=32.0,
            facts={"drafter": self.drafter},
            traffic=TRAFFIC,
            splits=splits,
        )

    def records(self) -> tuple[list[EngineRecord], list[Measurement]]:
        """As `run` leaves them: an engine that failed is not tried again."""
        engines, measurements = [], []
        for repeat in range(self.repeats):
            for variant in variants(self.settings()):
                fails = variant.kind == "stock" and self.stock_error is not None
                if fails and repeat:
                    continue
                engines.append(self.engine(variant, repeat))
                if not fails:
                    for number in range(repeat * self.rounds, (repeat + 1) * self.rounds):
                        measurements += [self.measurement(variant, number, c) for c in self.concurrency]
        return engines, measurements

    def folder(self, path) -> Folder:
        found = Folder(path)
        found.begin(self.settings(), self.context())
        engines, measurements = self.records()
        for record in [*engines, *measurements]:
            found.add(record)
        return found

    def report(self):
        from vllm_eagle_ext.measure.bench.summary import summarise

        return summarise(self.settings(), self.context(), *self.records())


def summarised(made: MadeUp, engines=None, measurements=None):
    found = made.records()
    return summarise(
        made.settings(),
        made.context(),
        engines or found[0],
        found[1] if measurements is None else measurements,
    )


def altered(made: MadeUp, variant: Variant, **update):
    """Its report with every measurement of a variant changed."""
    engines, measurements = made.records()
    changed = [m.model_copy(update=update) if m.variant == variant else m for m in measurements]
    return summarised(made, engines, changed)
