# SPDX-License-Identifier: Apache-2.0
"""Measures what a folder lacks of a stage, cell by cell, and writes each down as it ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Protocol

from vllm_eagle_ext.measure.engine.load import StepLoad, TimedSteps
from vllm_eagle_ext.measure.engine.machine import OtherWork
from vllm_eagle_ext.measure.tune.engines import Engines
from vllm_eagle_ext.measure.tune.order import (
    CellTurn,
    by_engines,
    missing_turns,
    prompts_of,
    turns_s,
)
from vllm_eagle_ext.measure.tune.request import Prompts
from vllm_eagle_ext.measure.tune.results import (
    Cell,
    ServedConfig,
    ServedLoad,
    Stage,
    TuneFolder,
    TuneSettings,
)

_WARM_STEPS = 4
_TELL_AFTER = 0.1  # of a stage


class TuneProgress(Protocol):
    """What a user sees meanwhile."""

    def stage(self, name: str, cells: int) -> None: ...

    def cell(self, served: ServedConfig, load: ServedLoad) -> None: ...

    def done(self) -> None: ...

    def left(self, seconds: float) -> None: ...


class Measuring:
    """One stage."""

    def __init__(
        self,
        folder: TuneFolder,
        settings: TuneSettings,
        prompts: Prompts,
        engines: Engines,
        display: TuneProgress,
    ) -> None:
        self.folder, self.settings, self.prompts = folder, settings, prompts
        self.engines, self.display = engines, display
        self._warm: set[tuple[ServedConfig, ServedLoad]] = set()

    def run(self, stage: Stage, served: Sequence[ServedConfig]) -> None:
        """Measure what is not in the folder yet."""
        left = missing_turns(self.settings, served, self.folder.cells(stage))
        self.display.stage(stage, sum(len(turn.served) for turn in left))
        whole, ended, spent, told = turns_s(self.settings, left), 0.0, 0.0, False
        for turns in by_engines(self.settings, left):
            self.engines.keep([one for turn in turns for one in turn.served])
            for turn in turns:
                for one in turn.served:
                    self.engines.of(one)
            for turn in turns:
                began = time.perf_counter()
                self._take(stage, turn)
                spent += time.perf_counter() - began
                ended += turns_s(self.settings, [turn])
                if not told and ended > _TELL_AFTER * whole:
                    self.display.left(spent * (whole - ended) / ended)
                    told = True

    def _take(self, stage: Stage, turn: CellTurn) -> None:
        waves = prompts_of(turn, self.prompts[turn.load.context])
        for served in turn.served:
            self.display.cell(served, turn.load)
            self._warm_up(served, turn.load, waves[0])
            with OtherWork().during() as others:
                found = [self._timed(served, wave, self.settings.steps) for wave in waves]
            self.folder.add(cell_of(stage, served, turn, found, others.cores))
            self.display.done()

    def _warm_up(self, served: ServedConfig, load: ServedLoad, prompts: list[list[int]]) -> None:
        """Run what is compiled at first use."""
        if (served, load) in self._warm:
            return
        self._warm.add((served, load))
        self._timed(served, prompts, _WARM_STEPS)

    def _timed(self, served: ServedConfig, prompts: list[list[int]], steps: int) -> TimedSteps:
        load = StepLoad(
            prompts,
            steps,
            draft_length=served.k if served.name == "held" else None,
            temperature=self.settings.temperature,
        )
        return self.engines.of(served).steps(load)


def cell_of(
    stage: Stage, served: ServedConfig, turn: CellTurn, found: Sequence[TimedSteps], other_cores: float
) -> Cell:
    """Put the waves of a cell together."""
    seconds = [second for one in found for second in one.seconds]
    longest = max((one.accepted for one in found), key=len)
    return Cell(
        stage=stage,
        served=served,
        load=turn.load,
        round=turn.round,
        step_s=median(seconds),
        steps=len(seconds),
        tokens=sum(one.tokens for one in found),
        context_tokens=sum(one.context for one in found) / len(found) / turn.load.requests,
        drafts=sum(one.drafts for one in found),
        accepted=[
            sum(one.accepted[position] for one in found if position < len(one.accepted))
            for position in range(len(longest))
        ],
        other_cores=other_cores,
    )
