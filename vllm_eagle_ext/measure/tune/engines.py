# SPDX-License-Identifier: Apache-2.0
"""The engines of a tune: what each is started with, and those that run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from vllm_eagle_ext.measure.engine.client import EngineProcess
from vllm_eagle_ext.measure.engine.held_length import SCHEDULER, schedule_of
from vllm_eagle_ext.measure.tune.results import ADAPTIVE_KEY, SCHEDULE_KEY, ServedConfig, TuneSettings
from vllm_eagle_ext.options import KEY


def speculative_of(settings: TuneSettings, served: ServedConfig) -> dict[str, Any] | None:
    """Give the speculative config of what is served."""
    own = dict(settings.speculative)
    if served.name == "none":
        return None
    if served.name == "fixed":
        own["num_speculative_tokens"] = served.k
    elif served.name == "schedule":
        own["num_speculative_tokens"] = max(k for _, _, k in served.schedule)
        own[SCHEDULE_KEY] = [list(entry) for entry in served.schedule]
    elif served.name == "held":
        own[SCHEDULE_KEY] = [list(entry) for entry in schedule_of(settings.lengths)]
    elif served.name == "adaptive":
        own[ADAPTIVE_KEY] = True
    return own


def additional_of(settings: TuneSettings) -> dict[str, Any] | None:
    """Give the additional config of a draft; None where there is nothing to say."""
    return {KEY: dict(settings.eagle_ext)} if settings.eagle_ext else None


def arguments_of(
    settings: TuneSettings, served: ServedConfig, engine: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Give the keywords of LLM().

    Args:
        engine: in place of the settings', with the share of the memory.
    """
    found: dict[str, Any] = {"seed": settings.seed, **(engine or settings.engine)}
    found["model"] = settings.target
    if (speculative := speculative_of(settings, served)) is not None:
        found["speculative_config"] = speculative
    if (additional := additional_of(settings)) is not None and served.name != "none":
        found["additional_config"] = additional
    if served.name == "held":
        found["scheduler_cls"] = SCHEDULER
    return found


class Engines:
    """Starts engines as they are asked for, and keeps them. Use as a context manager.

    Args:
        starting: told what is started.

    Raises:
        EngineFailedError: one did not start.
    """

    PROCESS: ClassVar[type[EngineProcess]] = EngineProcess

    def __init__(
        self,
        settings: TuneSettings,
        logs: Path,
        engine: Mapping[str, Any],
        starting: Callable[[ServedConfig], None],
    ) -> None:
        self.settings, self.logs, self.engine, self.starting = settings, logs, engine, starting
        self.spent_s = 0.0  # in starts
        self._running: dict[ServedConfig, EngineProcess] = {}

    def __enter__(self) -> Engines:
        self.logs.mkdir(exist_ok=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for served in list(self._running):
            self._running.pop(served).__exit__(kind, error, trace)

    def of(self, served: ServedConfig) -> EngineProcess:
        """The engine that serves this; it is started where it does not run."""
        key = served.engine
        if key not in self._running:
            self.starting(key)
            began = time.perf_counter()
            arguments = arguments_of(self.settings, key, self.engine)
            log = self.logs / f"{key.name}.log"
            # Without a draft, too: what is compared differs in the draft alone.
            engine = self.PROCESS(arguments, log, name=f"the engine of {key.name}")
            engine.__enter__()
            self._running[key] = engine
            self.spent_s += time.perf_counter() - began
        return self._running[key]

    def keep(self, served: Collection[ServedConfig]) -> None:
        """End those that serve nothing of this."""
        wanted = {one.engine for one in served}
        for key in [one for one in self._running if one not in wanted]:
            self._running.pop(key).__exit__(None, None, None)
