# SPDX-License-Identifier: Apache-2.0
"""Engines in turns, each measured at every concurrency, and written down as they end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from vllm_eagle_ext.measure.bench.estimate import left_s
from vllm_eagle_ext.measure.bench.request import engine_arguments
from vllm_eagle_ext.measure.bench.results import EngineRecord, Folder, Settings, Split, Traffic, Variant
from vllm_eagle_ext.measure.bench.schedule import Turn, batches, outstanding
from vllm_eagle_ext.measure.bench.take import measurement
from vllm_eagle_ext.measure.engine.client import PROBE, EngineFailedError, EngineProcess
from vllm_eagle_ext.measure.engine.load import Load
from vllm_eagle_ext.measure.engine.machine import OtherWork
from vllm_eagle_ext.measure.engine.memory_share import UTILIZATION, Share, with_memory

_WARM_TOKENS, _PROBE_TOKENS = 16, 64


class Display(Protocol):
    """What a user sees meanwhile."""

    def engine(self, variant: Variant, repeat: int) -> None: ...

    def load(self, variant: Variant, concurrency: int, requests: int) -> Callable[[int], None]: ...

    def failed(self, variant: Variant, error: str) -> None: ...

    def memory(self, share: Share) -> None: ...

    def left(self, seconds: float) -> None: ...


def run_turns(
    folder: Folder, settings: Settings, prompts: Sequence[list[int]], display: Display
) -> None:
    """Measure all that is not in the folder yet."""
    (folder.path / "logs").mkdir(exist_ok=True)
    failed: set[Variant] = set()
    left = outstanding(settings, folder.engines(), folder.measurements())
    ended: list[Turn] = []
    began = time.perf_counter()
    engine = settings.engine
    for batch in batches(settings, left):
        wanted = [turn for turn in batch if turn.variant not in failed]
        if not ended:
            engine, share = with_memory(engine, models(settings), engines=len(wanted))
            if share is not None:
                display.memory(share)
        turns = [_Turn(folder, settings, turn, prompts, display, engine) for turn in wanted]
        _take_turns(settings, turns)
        failed |= {turn.turn.variant for turn in turns if turn.error is not None}
        ended += batch
        if rest := [turn for turn in left[len(ended) :] if turn.variant not in failed]:
            display.left(left_s(settings, ended, time.perf_counter() - began, rest))


def _take_turns(settings: Settings, turns: Sequence[_Turn]) -> None:
    """Engines that are kept beside each other change their order from round to round."""
    with ExitStack() as stack:
        for turn in turns:
            turn.start(stack)
        wanted = {level for turn in turns for level, _ in turn.turn.missing}
        for level in settings.concurrency:
            if level in wanted:
                for turn in turns:
                    turn.warm(level)
            for number in range(settings.rounds):
                for turn in turns[:: -1 if number % 2 else 1]:
                    turn.measure(level, number)
        for turn in turns:
            turn.probe()
            turn.end()


class _Turn:
    """One engine. After an error nothing more is asked of it."""

    def __init__(
        self,
        folder: Folder,
        settings: Settings,
        turn: Turn,
        prompts: Sequence[list[int]],
        display: Display,
        engine: Mapping[str, Any],
    ) -> None:
        """Nothing starts yet; `engine` has the keywords of LLM(), with the share of the memory."""
        self.folder, self.settings, self.turn = folder, settings, turn
        self.prompts, self.display = prompts, display
        self.error: str | None = None
        self.start_s = 0.0
        self.found: dict[str, Any] = {}
        variant = turn.variant
        self.utilization = engine.get(UTILIZATION) if UTILIZATION not in settings.engine else None
        wanted = settings.model_copy(update={"engine": dict(engine)})
        arguments = engine_arguments(wanted, variant.kind, variant.draft, variant.k)
        self.engine = EngineProcess(
            arguments | {"worker_extension_cls": PROBE},
            folder.path / "logs" / log_name(settings, turn),
            name=variant.name,
            plugin=variant.has_plugin,
        )

    def start(self, stack: ExitStack) -> None:
        self.display.engine(self.turn.variant, self.turn.repeat)
        started = time.perf_counter()
        with self._failing():
            stack.enter_context(self.engine)
            self.start_s = time.perf_counter() - started
            self.found["facts"] = facts = self.engine.rpc("eagle_ext_facts")[0]
            if facts["plugin"] != self.turn.variant.has_plugin:
                self.error = f"this package was loaded: {facts['plugin']}; `vllm-eagle status` says why"

    def warm(self, level: int) -> None:
        with self._failing():
            if self.error is None:
                self.engine.load(self._load(self.prompts[:level], level, _WARM_TOKENS))

    def measure(self, level: int, number: int) -> None:
        if self.error is not None or (level, number) not in self.turn.missing:
            return
        advance = self.display.load(self.turn.variant, level, len(self.prompts))
        with self._failing():
            with OtherWork().during() as others:
                found = self.engine.load(self._load(self.prompts, level), advance)
            repeat = self.turn.repeat * self.settings.rounds + number
            self.folder.add(measurement(self.turn.variant, repeat, level, found, others.cores))

    def probe(self) -> None:
        """What is measured apart from what is timed, and no fault of the engine where it fails."""
        if self.turn.repeat or self.error is not None:
            return
        try:
            self.found["traffic"] = Traffic(**self.engine.rpc("eagle_ext_traffic")[0])
            self.found["splits"] = [s for c in self.settings.concurrency if (s := self._split(c))]
        except EngineFailedError as failure:
            self.found["probe_error"] = str(failure.value)

    def end(self) -> None:
        record = EngineRecord(
            variant=self.turn.variant, repeat=self.turn.repeat, start_s=self.start_s, error=self.error,
            gpu_memory_utilization=self.utilization, **self.found,
        )  # fmt: skip
        self.folder.add(record)
        if self.error is not None:
            self.display.failed(self.turn.variant, self.error)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except EngineFailedError as failure:
            self.error = f"{failure.value}\n{failure.remedy}"

    def _split(self, level: int) -> Split | None:
        self.engine.rpc("eagle_ext_time_steps", level)
        self.engine.load(self._load(self.prompts[: 2 * level], level, _PROBE_TOKENS))
        found = self.engine.rpc("eagle_ext_time_steps", 0)[0]
        return Split(concurrency=level, **found) if found["steps"] else None

    def _load(self, prompts: Sequence[list[int]], level: int, max_tokens: int | None = None) -> Load:
        settings = self.settings
        return Load(
            prompts=list(prompts),
            concurrency=level,
            max_tokens=max_tokens or settings.max_tokens,
            temperature=settings.temperature,
            ignore_eos=settings.ignore_eos,
        )


def models(settings: Settings) -> list[str]:
    """What one engine loads at most: drafts are small beside each other."""
    return [settings.target, *settings.drafts]


def log_name(settings: Settings, turn: Turn) -> str:
    """Drafts are numbered: their names may be long, or alike."""
    variant = turn.variant
    draft = (
        "" if variant.draft is None else f"_draft{settings.drafts.index(variant.draft) + 1}_k{variant.k}"
    )
    return f"{variant.kind}{draft}_{turn.repeat + 1}.log"
