# SPDX-License-Identifier: Apache-2.0
"""Measures: all variants take turns at each load, in each round."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.draft_lengths.lengths_result import AUTO, LengthsCell, LengthsSettings, LoadShape
from benchmarks.draft_lengths.phased_engine import PhasedEngines
from benchmarks.draft_lengths.phased_load import PhasedLoad, PhasedSteps
from benchmarks.draft_lengths.tiny_pairs import loads_of_cell, waves
from vllm_eagle_ext.measure.announce import duration
from vllm_eagle_ext.measure.engine.machine import OtherWork
from vllm_eagle_ext.measure.tune.order import CellTurn, start_s, turns_s
from vllm_eagle_ext.measure.tune.order import waves as tuned_waves
from vllm_eagle_ext.measure.tune.request import Prompts
from vllm_eagle_ext.measure.tune.results import NONE, ServedConfig, ServedLoad, TuneSettings

_FEWER_STEPS = 0.6  # of those without a draft; the median of the lengths, half of the texts sampled
_FIRST_S = 15  # of a load, in which "auto" learns
_WARM_TOKENS = 4  # of a request, where nothing is learnt: what is compiled at first use


def forecast_s(settings: LengthsSettings, tune: TuneSettings) -> float:
    """Seconds of a run on two cores."""
    seconds = settings.starts * (3 * start_s(tune) + _FIRST_S * len(settings.loads))
    drafted = tuple(settings.served[1:])
    for load in settings.loads:
        times = waves(load, settings.texts)
        for level in load.phases:
            one = ServedLoad(requests=level, context=load.context)
            plain, other = (
                turns_s(tune, [CellTurn(one, 1, served)]) / tuned_waves(level)
                for served in ((NONE,), drafted)
            )
            seconds += settings.rounds * times * (plain + _FEWER_STEPS * other)
    return seconds


class LengthsRun:
    """All cells of a pair. Use `run` once."""

    def __init__(self, settings: LengthsSettings, tune: TuneSettings, prompts: Prompts) -> None:
        self.settings, self.tune, self.prompts = settings, tune, prompts
        self.cells: list[LengthsCell] = []
        self._warm: set[tuple[ServedConfig, LoadShape]] = set()
        self._warming_s = 0.0

    def run(self, logs: Path) -> list[LengthsCell]:
        """Start the three engines as often as the settings say, and measure.

        Raises:
            EngineFailedError: an engine failed.
        """
        starting = lambda served: print(f"starting the engine of {served.name}", flush=True)  # noqa: E731
        logs.mkdir(parents=True, exist_ok=True)
        with PhasedEngines(self.tune, logs, self.tune.engine, starting) as self.engines:
            for number in range(self.settings.rounds):
                if number in self.settings.fresh_rounds:
                    self._start_anew()
                began, warming_s = time.perf_counter(), self._warming_s
                for load in self.settings.loads:
                    self._take_turns(load, number)
                spent = time.perf_counter() - began - (self._warming_s - warming_s)
                if left := spent * (self.settings.rounds - number - 1):
                    print(f"about {duration(left)} of rounds left", flush=True)
        return self.cells

    def _start_anew(self) -> None:
        """End all engines and start them: no process is quite as fast as the one before it."""
        self.engines.keep([])
        self._warm.clear()
        for served in self.settings.served:
            self.engines.of(served)

    def _take_turns(self, load: LoadShape, number: int) -> None:
        began = time.perf_counter()
        for served in self.settings.served[:: -1 if number % 2 else 1]:
            self._warm_up(served, load, number)
            with OtherWork().during() as others:
                found = self._decoded(served, self._loads(served, load, number, self.settings.tokens))
            cell = cell_of(served, load, number, *found)
            self.cells.append(cell.model_copy(update={"other_cores": round(others.cores, 3)}))
        name = f"round {number + 1} of {self.settings.rounds}, {load.shown} requests"
        seconds = time.perf_counter() - began
        print(f"{name}, context {load.context}: {seconds:.0f} s", flush=True)

    def _warm_up(self, served: ServedConfig, load: LoadShape, number: int) -> None:
        if (served, load) in self._warm:
            return
        self._warm.add((served, load))
        began = time.perf_counter()
        if served == AUTO and self.settings.first_steps:
            self._learn(load, number)
        else:
            self._decoded(served, self._loads(served, load, number, _WARM_TOKENS)[:1])
        self._warming_s += time.perf_counter() - began

    def _learn(self, load: LoadShape, number: int) -> None:
        """Let the controller try its lengths, as in a server that has been up for a while."""
        loads: list[PhasedLoad] = []
        found: list[PhasedSteps] = []
        while sum(one.steps for one in found) < self.settings.first_steps:
            more = self._loads(AUTO, load, number, self.settings.tokens)
            one, steps = self._decoded(AUTO, more[len(loads) % len(more) :][:1])
            loads, found = loads + one, found + steps
        cell = cell_of(AUTO, load, number, loads, found)
        self.cells.append(cell.model_copy(update={"is_first": True}))

    def _loads(
        self, served: ServedConfig, load: LoadShape, number: int, tokens: int
    ) -> list[PhasedLoad]:
        length = served.k if served.name == "held" else None
        prompts, texts = self.prompts[load.context], self.settings.texts
        return loads_of_cell(load, number, prompts, length, tokens=tokens, texts=texts)

    def _decoded(
        self, served: ServedConfig, loads: list[PhasedLoad]
    ) -> tuple[list[PhasedLoad], list[PhasedSteps]]:
        return loads, [self.engines.of(served).phases(load) for load in loads]


def cell_of(
    served: ServedConfig,
    load: LoadShape,
    number: int,
    loads: Sequence[PhasedLoad],
    found: Sequence[PhasedSteps],
) -> LengthsCell:
    """Put the waves of a cell together."""
    longest = max((one.accepted for one in found), key=len)
    return LengthsCell(
        served=served,
        load=load,
        round=number,
        cpu_s=round(sum(one.cpu_s for one in found), 5),
        wall_s=round(sum(one.wall_s for one in found), 5),
        steps=sum(one.steps for one in found),
        greedy=_of_temperature(0.0, loads, found),
        sampled=_of_temperature(1.0, loads, found),
        decoded=sum(one.decoded for one in found),
        piece_s=sum(one.piece_s * one.steps for one in found) / sum(one.steps for one in found),
        drafts=sum(one.drafts for one in found),
        drafted=sum(one.drafted for one in found),
        accepted=[
            sum(one.accepted[place] for one in found if place < len(one.accepted))
            for place in range(len(longest))
        ],
    )


def _of_temperature(
    temperature: float, loads: Sequence[PhasedLoad], found: Sequence[PhasedSteps]
) -> tuple[int, int]:
    """Tokens of these prompts, and the steps that gave them."""
    counted = [
        pair
        for load, steps in zip(loads, found, strict=True)
        for pair, own in zip(steps.of_prompt, load.temperatures, strict=True)
        if own == temperature
    ]
    return sum(tokens for tokens, _ in counted), sum(steps for _, steps in counted)
