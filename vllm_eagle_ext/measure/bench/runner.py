# SPDX-License-Identifier: Apache-2.0
"""Engines in turns: each variant at every load, round by round."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vllm_eagle_ext.measure.bench.request import Prompts
from vllm_eagle_ext.measure.bench.results import (
    PLAIN,
    EngineRecord,
    Measurement,
    ServedLoad,
    Settings,
    Stage,
    Variant,
    config_of,
)
from vllm_eagle_ext.measure.bench.summary import metrics_of_steps, metrics_of_texts
from vllm_eagle_ext.measure.engine.client import PROBE, EngineFailedError, EngineProcess
from vllm_eagle_ext.measure.engine.load import Load, StepLoad
from vllm_eagle_ext.measure.engine.machine import UTILIZATION, OtherWork, with_memory
from vllm_eagle_ext.measure.engine.probe import SCHEDULER
from vllm_eagle_ext.printable import printable

LEAST_PROMPTS = 4  # of a measurement of steps: fewer requests decode several waves after each other
Batch = tuple[int, list[list[Variant]]]  # repeat, and engines at a time with what each serves


def engine_arguments(
    settings: Settings, variant: Variant, engine: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Give the keywords of LLM(); `engine`, with a share of the memory, stands for the settings' own."""
    arguments: dict[str, Any] = {"seed": settings.seed, **(engine or settings.engine)}
    arguments["model"] = settings.target
    if settings.dummy:
        arguments |= {"load_format": "dummy", "skip_tokenizer_init": True}
    config = config_of(settings, variant)
    arguments |= {name: value for name, value in config.model_dump().items() if value is not None}
    if variant.kind == "held":
        arguments["scheduler_cls"] = SCHEDULER
    return arguments


def engine_of(settings: Settings, variant: Variant) -> Variant:
    """Return the variant that stands for an engine: one engine holds every K."""
    if variant.kind != "held":
        return variant
    return variant.model_copy(update={"k": max(settings.ks)})


def variants(settings: Settings) -> list[Variant]:
    """List the variants with stock next to ours, so that what is compared runs one after the other."""
    kinds = [kind for kind in settings.kinds if kind != "none"]
    plain = [PLAIN] if "none" in settings.kinds else []
    return plain + [
        Variant(kind=kind, draft=draft, k=k)
        for draft in settings.drafts
        for k in settings.ks
        for kind in kinds
    ]


def swept(settings: Settings) -> list[Variant]:
    """List what the sweep measures: no draft, and each K in one engine."""
    (draft,) = settings.drafts
    return [PLAIN, *(Variant(kind="held", draft=draft, k=k) for k in settings.ks)]


def batches(settings: Settings, served: Sequence[Variant]) -> Iterator[Batch]:
    """Yield the batches of engines, which are fresh for each repeat.

    Every second repeat goes in reverse: a machine that slows down does so for all alike.
    """
    engines: dict[Variant, list[Variant]] = {}
    for variant in served:
        engines.setdefault(engine_of(settings, variant), []).append(variant)
    for repeat in range(settings.repeats):
        order = list(engines.values())[:: -1 if repeat % 2 else 1]
        for at_once in [order] if settings.together else [[own] for own in order]:
            yield repeat, at_once


def turns(engines: Sequence[Sequence[Variant]], number: int) -> list[tuple[int, Variant]]:
    """List each variant with the place of its engine; the order changes from round to round."""
    order = [(place, variant) for place, own in enumerate(engines) for variant in own]
    return order[:: -1 if number % 2 else 1]


def prompts_of(load: ServedLoad, number: int, prompts: Sequence[list[int]]) -> list[list[list[int]]]:
    """List the prompts of each wave of steps: others in each round, the same for all that take turns."""
    requests = load.concurrency
    waves = math.ceil(LEAST_PROMPTS / requests)
    first = number * waves * requests
    return [
        [prompts[(first + wave * requests + n) % len(prompts)] for n in range(requests)]
        for wave in range(waves)
    ]


_WARM_TOKENS, _WARM_STEPS = 16, 4


class Runner:
    """Measures stages, and keeps what was found. Use as a context manager, which shows a bar of each."""

    def __init__(self, settings: Settings, prompts: Prompts, logs: Path, console: Console) -> None:
        self.settings, self.prompts, self.logs = settings, prompts, logs
        self.engines: list[EngineRecord] = []
        self.measurements: list[Measurement] = []
        self.failures: dict[Variant, EngineFailedError] = {}
        self.progress = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(), console=console,
        )  # fmt: skip

    def __enter__(self) -> Runner:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # of a terminal that has been closed
            self.progress.stop()

    def run(self, stage: Stage, served: Sequence[Variant]) -> None:
        """Measure these variants; one whose engine failed is not tried again.

        Raises:
            EngineFailedError: there is not enough free memory, or an engine of --schedule failed.
        """
        settings = self.settings
        self.logs.mkdir(parents=True, exist_ok=True)
        planned = list(batches(settings, served))
        each = len(settings.loads) * settings.rounds
        self.task = self.progress.add_task(stage, total=each * len(served) * settings.repeats)
        # A share of the memory for each engine of a batch; drafts are small next to each other.
        models = [settings.target, *settings.drafts]
        at_once = max(len(engines) for _, engines in planned)
        arguments, share = with_memory(settings.engine, models, engines=at_once)
        if share is not None:
            self.say(share)
        for repeat, engines in planned:
            self._run_batch(stage, repeat, engines, arguments)
        for failure in self.failures.values() if settings.steps else ():
            raise failure

    def _run_batch(
        self, stage: Stage, repeat: int, engines: Sequence[Sequence[Variant]],
        arguments: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Start engines that run at the same time, and measure them in turns."""
        started = [_Engine(self, stage, own[0], repeat, arguments) for own in engines]
        with ExitStack() as stack:
            for engine in started:
                engine.start(stack)
            for number in range(self.settings.rounds):
                for load in self.settings.loads:
                    for place, variant in turns(engines, number):
                        started[place].measure(variant, load, number)
                        self.progress.advance(self.task)
            self.engines += [engine.record() for engine in started]

    def show(self, text: str) -> None:
        self.progress.update(self.task, description=printable(text))

    def say(self, text: str) -> None:
        self.progress.console.print(text, markup=False, soft_wrap=True)


class _Engine:
    """One engine. After an error nothing more is asked of it."""

    def __init__(
        self, runner: Runner, stage: Stage, first: Variant, repeat: int, arguments: Mapping[str, Any]
    ) -> None:
        """Keep what the engine needs, with the keywords of LLM(); nothing starts yet."""
        self.runner, self.stage, self.repeat = runner, stage, repeat
        self.settings, self.variant = runner.settings, engine_of(runner.settings, first)
        self.utilization = (
            arguments.get(UTILIZATION) if UTILIZATION not in self.settings.engine else None
        )
        self.start_s, self.facts = 0.0, dict[str, Any]()
        self._warm: set[tuple[Variant, ServedLoad]] = set()
        self.process = EngineProcess(
            engine_arguments(self.settings, self.variant, arguments) | {"worker_extension_cls": PROBE},
            runner.logs / self._log_name(),
            name=self.variant.name,
            plugin=self.variant.has_plugin,
        )

    def _log_name(self) -> str:
        """Name the log, with its draft as a number: drafts' names may be long, or alike."""
        variant = self.variant
        parts: list[str] = [variant.kind] if self.stage == "texts" else [self.stage, variant.kind]
        if variant.draft is not None:
            parts += [f"draft{self.settings.drafts.index(variant.draft) + 1}", f"k{variant.k}"]
        return "_".join([*parts, f"{self.repeat + 1}.log"])

    def start(self, stack: ExitStack) -> None:
        if self.variant in self.runner.failures:  # in an earlier repeat
            return
        started = time.perf_counter()
        with self._failing():
            self.runner.show(f"{self.variant.name}: starting")
            stack.enter_context(self.process)
            self.start_s = time.perf_counter() - started
            self.facts = self.process.rpc("eagle_ext_facts")[0]
            if self.settings.synthetic_acceptance is not None:
                self.process.rpc("eagle_ext_synthetic_acceptance")
            if self.facts["plugin"] != self.variant.has_plugin:
                raise EngineFailedError(
                    field=self.variant.name, value=f"this package was loaded: {self.facts['plugin']}",
                    allowed=str(self.variant.has_plugin), remedy="`vllm-eagle status` says why",
                )  # fmt: skip

    def measure(self, variant: Variant, load: ServedLoad, number: int) -> None:
        """Measure one round at a load, the first time after a short one: what is compiled then."""
        if self.variant in self.runner.failures:
            return
        context = f", context {load.context}" if load.context else ""
        with self._failing():
            self.runner.show(f"{variant.name}, {load.concurrency} at a time{context}")
            if (variant, load) not in self._warm:
                self._warm.add((variant, load))
                self._metrics(variant, load, 0, is_warm_up=True)
            with OtherWork().during() as others:
                metrics = self._metrics(variant, load, number)
            self.runner.measurements.append(
                Measurement(
                    stage=self.stage,
                    variant=variant,
                    load=load,
                    other_cores=others.cores,
                    repeat=self.repeat * self.settings.rounds + number,
                    **metrics,
                )  # fmt: skip
            )

    def _metrics(
        self, variant: Variant, load: ServedLoad, number: int, *, is_warm_up: bool = False
    ) -> dict[str, Any]:
        """Time steps, or decode whole texts, `load.concurrency` of them at a time."""
        settings, prompts = self.settings, self.runner.prompts[load.context]
        if settings.steps:
            waves = prompts_of(load, number, prompts)[: 1 if is_warm_up else None]
            steps = _WARM_STEPS if is_warm_up else settings.steps
            k = variant.k if variant.kind == "held" else None
            loads = [StepLoad(wave, steps, k, settings.temperature) for wave in waves]
            return metrics_of_steps([self.process.steps(each) for each in loads])
        tokens = _WARM_TOKENS if is_warm_up else settings.max_tokens
        chosen = prompts[: load.concurrency if is_warm_up else None]
        texts = Load(chosen, load.concurrency, tokens, settings.temperature, settings.ignore_eos)
        return metrics_of_texts(self.process.load(texts))

    def record(self) -> EngineRecord:
        """Write down what the engine said of itself, or why it failed."""
        failure = self.runner.failures.get(self.variant)
        error = "\n".join([f"{failure.value}", failure.remedy, *failure.more]) if failure else None
        return EngineRecord(
            stage=self.stage, variant=self.variant, repeat=self.repeat, start_s=self.start_s,
            gpu_memory_utilization=self.utilization, error=error, facts=self.facts,
        )  # fmt: skip

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except EngineFailedError as failure:
            self.runner.failures[self.variant] = failure
            self.runner.say(f"{self.variant.name}: not served: {str(failure.value).splitlines()[0]}")
