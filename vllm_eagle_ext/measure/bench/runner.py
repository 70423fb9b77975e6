# SPDX-License-Identifier: Apache-2.0
"""Engines in turns: each variant at every load, round by round."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from vllm_eagle_ext.measure.bench.engines import (
    EngineBatch,
    batches,
    engine_arguments,
    engine_of,
    prompts_of,
    turns,
)
from vllm_eagle_ext.measure.bench.progress import ProgressDisplay
from vllm_eagle_ext.measure.bench.request import Prompts
from vllm_eagle_ext.measure.bench.results import (
    EngineRecord,
    Measurement,
    ServedLoad,
    Settings,
    Split,
    Stage,
    Variant,
)
from vllm_eagle_ext.measure.bench.summary import metrics_of_steps, metrics_of_texts
from vllm_eagle_ext.measure.engine.client import PROBE, EngineFailedError, EngineProcess
from vllm_eagle_ext.measure.engine.load import Load, Measured, StepLoad, TimedSteps
from vllm_eagle_ext.measure.engine.machine import UTILIZATION, OtherWork, with_memory

_WARM_TOKENS, _WARM_STEPS, _PROBE_TOKENS = 16, 4, 64


class Runner:
    """Measures stages, and keeps what was found.

    Args:
        logs: folder of the engines' logs.
    """

    def __init__(
        self, settings: Settings, prompts: Prompts, logs: Path, display: ProgressDisplay
    ) -> None:
        self.settings, self.prompts = settings, prompts
        self.logs, self.display = logs, display
        self.engines: list[EngineRecord] = []
        self.measurements: list[Measurement] = []
        self.failures: dict[Variant, EngineFailedError] = {}

    def run(self, stage: Stage, served: Sequence[Variant]) -> None:
        """Measure these variants; one whose engine failed is not tried again.

        Raises:
            EngineFailedError: there is not enough free memory.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        found = batches(self.settings, served)
        settings = self.settings
        each = len(settings.loads) * settings.rounds
        self.display.stage(stage, each * sum(len(own) for one in found for own in one.engines))
        models = [settings.target, *settings.drafts]  # drafts are small next to each other
        at_once = max(len(one.engines) for one in found)
        engine, share = with_memory(settings.engine, models, engines=at_once)
        if share is not None:
            self.display.memory(share)
        for batch in found:
            _run_batch(self, stage, batch, engine)


def _run_batch(runner: Runner, stage: Stage, batch: EngineBatch, engine: Mapping[str, Any]) -> None:
    """Start engines that run at the same time, and measure them in turns.

    `engine` has the keywords of LLM(), with the share of the memory.
    """
    engines = [_Engine(runner, stage, own[0], batch.repeat, engine) for own in batch.engines]
    with ExitStack() as stack:
        for each in engines:
            each.start(stack)
        for number in range(runner.settings.rounds):
            for load in runner.settings.loads:
                for place, variant in turns(batch, number):
                    engines[place].measure(variant, load, number)
                    runner.display.done()
        for each in engines:
            each.probe()
            each.end()


class _Engine:
    """One engine. After an error nothing more is asked of it."""

    def __init__(
        self, runner: Runner, stage: Stage, first: Variant, repeat: int, engine: Mapping[str, Any]
    ) -> None:
        """Keep what the engine needs; nothing starts yet.

        `engine` has the keywords of LLM(), with the share of the memory.
        """
        self.runner, self.stage, self.repeat = runner, stage, repeat
        self.settings, self.variant = runner.settings, engine_of(runner.settings, first)
        self.utilization = engine.get(UTILIZATION) if UTILIZATION not in self.settings.engine else None
        self.start_s, self.found = 0.0, dict[str, Any]()
        self._warm: set[tuple[Variant, ServedLoad]] = set()
        self.process = EngineProcess(
            engine_arguments(self.settings, self.variant, engine) | {"worker_extension_cls": PROBE},
            runner.logs / log_name(self.settings, stage, self.variant, repeat),
            name=self.variant.name,
            plugin=self.variant.has_plugin,
        )

    def start(self, stack: ExitStack) -> None:
        if self.failed:  # in an earlier repeat
            return
        started = time.perf_counter()
        with self._failing():
            self.runner.display.show(f"{self.variant.name}: starting")
            stack.enter_context(self.process)
            self.start_s = time.perf_counter() - started
            self.found["facts"] = facts = self.process.rpc("eagle_ext_facts")[0]
            if self.settings.synthetic_acceptance is not None:
                self.process.rpc("eagle_ext_accept_by_lot")
            if facts["plugin"] != self.variant.has_plugin:
                raise EngineFailedError(
                    field=self.variant.name, value=f"this package was loaded: {facts['plugin']}",
                    allowed=str(self.variant.has_plugin), remedy="`vllm-eagle status` says why",
                )  # fmt: skip

    def measure(self, variant: Variant, load: ServedLoad, number: int) -> None:
        """Measure one round at a load."""
        if self.failed:
            return
        with self._failing():
            self.runner.display.show(_described(variant, load))
            if (variant, load) not in self._warm:
                self._warm.add((variant, load))
                self._warm_up(variant, load)
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

    def _warm_up(self, variant: Variant, load: ServedLoad) -> None:
        """Run a short load, for what is compiled at first use."""
        prompts, level = self.runner.prompts[load.context], load.concurrency
        if self.settings.steps:
            self._time_steps(variant, prompts_of(load, 0, prompts)[0], _WARM_STEPS)
        else:
            self._decode(prompts[:level], level, _WARM_TOKENS)

    def _metrics(self, variant: Variant, load: ServedLoad, number: int) -> dict[str, Any]:
        """Measure a variant at a load, and return the metrics of a Measurement."""
        prompts, steps = self.runner.prompts[load.context], self.settings.steps
        if not steps:
            return metrics_of_texts(self._decode(prompts, load.concurrency, self.settings.max_tokens))
        waves = prompts_of(load, number, prompts)
        return metrics_of_steps([self._time_steps(variant, wave, steps) for wave in waves])

    def _decode(self, prompts: Sequence[list[int]], level: int, max_tokens: int) -> Measured:
        """Decode whole texts, `level` of them at a time."""
        settings = self.settings
        load = Load(list(prompts), level, max_tokens, settings.temperature, settings.ignore_eos)
        return self.process.load(load)

    def _time_steps(self, variant: Variant, prompts: list[list[int]], steps: int) -> TimedSteps:
        held = variant.k if variant.kind == "held" else None
        return self.process.steps(StepLoad(prompts, steps, held, self.settings.temperature))

    def probe(self) -> None:
        """Measure the parts of a step, which is no fault of the engine where it fails.

        They are measured apart from what is timed. A load without a whole step has no parts.
        """
        if self.repeat or self.settings.steps or self.failed:
            return
        prompts, splits = self.runner.prompts[0], []
        try:
            for level in self.settings.concurrency:
                self.process.rpc("eagle_ext_time_steps", level)
                self._decode(prompts[: 2 * level], level, _PROBE_TOKENS)
                parts = self.process.rpc("eagle_ext_time_steps", 0)[0]
                if parts["steps"]:
                    splits.append(Split(concurrency=level, **parts))
        except EngineFailedError as failure:
            self.found["probe_error"] = str(failure.value)
        else:
            self.found["splits"] = splits

    def end(self) -> None:
        """Write down what the engine said of itself, or why it failed."""
        failure = self.runner.failures.get(self.variant)
        record = EngineRecord(
            stage=self.stage, variant=self.variant, repeat=self.repeat, start_s=self.start_s,
            gpu_memory_utilization=self.utilization,
            error="\n".join([f"{failure.value}", failure.remedy, *failure.more]) if failure else None,
            **self.found,
        )  # fmt: skip
        self.runner.engines.append(record)

    @property
    def failed(self) -> bool:
        return self.variant in self.runner.failures

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except EngineFailedError as failure:
            self.runner.failures[self.variant] = failure
            self.runner.display.failed(self.variant, str(failure.value))


def _described(variant: Variant, load: ServedLoad) -> str:
    context = f", context {load.context}" if load.context else ""
    return f"{variant.name}, {load.concurrency} request{'s' * (load.concurrency > 1)}{context}"


def log_name(settings: Settings, stage: Stage, variant: Variant, repeat: int) -> str:
    """Name the log of an engine, with its draft as a number: drafts' names may be long, or alike."""
    before = "" if stage == "texts" else f"{stage}_"
    if variant.draft is None:
        return f"{before}{variant.kind}_{repeat + 1}.log"
    draft = settings.drafts.index(variant.draft) + 1
    return f"{before}{variant.kind}_draft{draft}_k{variant.k}_{repeat + 1}.log"
