# SPDX-License-Identifier: Apache-2.0
"""Measures: engines are started, and at each load all variants take turns; this many times over."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.draft_lengths.lengths_result import (
    AUTO,
    LengthsCell,
    LengthsSettings,
    LengthSteps,
    LoadShape,
)
from benchmarks.draft_lengths.load_summary import best_of, rates_of
from benchmarks.draft_lengths.phased_engine import PhasedEngines
from benchmarks.draft_lengths.phased_load import PhasedLoad, PhasedSteps
from benchmarks.draft_lengths.tiny_pairs import load_of_turn, load_to_learn
from benchmarks.draft_lengths.turn_order import Turn, turns_of
from vllm_eagle_ext.measure.announce import duration
from vllm_eagle_ext.measure.engine.machine import OtherWork
from vllm_eagle_ext.measure.tune.order import CellTurn, start_s, turns_s
from vllm_eagle_ext.measure.tune.order import waves as tuned_waves
from vllm_eagle_ext.measure.tune.request import Prompts
from vllm_eagle_ext.measure.tune.results import NONE, ServedConfig, ServedLoad, TuneSettings

_FEWER_STEPS = 0.6  # of those without a draft, the median of the lengths
_FIRST_S = 5  # of a load, in which "auto" learns


def forecast_s(settings: LengthsSettings, tune: TuneSettings) -> float:
    """Seconds of a run on two cores; three engines that start at once take as long as one may."""
    seconds = start_s(tune) + _FIRST_S * len(settings.loads)
    drafted = (*settings.held, settings.held[-1], AUTO)
    for load in settings.loads:
        amount = tune.model_copy(update={"steps": settings.tokens_of(load)})
        for level in load.phases:
            one = ServedLoad(requests=level, context=load.context)
            plain, other = (
                turns_s(amount, [CellTurn(one, 1, served)]) / tuned_waves(level)
                for served in ((NONE,), drafted)
            )
            seconds += settings.rounds_of(load) * (plain + _FEWER_STEPS * other)
    return settings.starts * seconds


class LengthsRun:
    """All cells of a pair. Use `run` once."""

    def __init__(self, settings: LengthsSettings, tune: TuneSettings, prompts: Prompts) -> None:
        self.settings, self.tune, self.prompts = settings, tune, prompts
        self.cells: list[LengthsCell] = []

    def run(self, logs: Path) -> list[LengthsCell]:
        """Start the three engines as often as the settings say, and measure.

        Raises:
            EngineFailedError: an engine failed.
        """
        starting = lambda served: print(f"starting the engine of {served.name}", flush=True)  # noqa: E731
        logs.mkdir(parents=True, exist_ok=True)
        with PhasedEngines(self.tune, logs, self.tune.engine, starting) as self.engines:
            for start in range(self.settings.starts):
                began = time.perf_counter()
                self._start_anew()
                print(f"started in {time.perf_counter() - began:.0f} s", flush=True)
                for place, load in enumerate(self.settings.loads):
                    self._measure(load, start, place)
                if left := self.settings.starts - start - 1:
                    spent = time.perf_counter() - began
                    print(f"about {duration(left * spent)} of {left} starts left", flush=True)
        return self.cells

    def _start_anew(self) -> None:
        """End all engines and start them: no process is quite as fast as the one before it."""
        self.engines.keep([])
        with ThreadPoolExecutor() as pool:
            list(pool.map(self.engines.of, (NONE, self.settings.held[0], AUTO)))

    def _measure(self, load: LoadShape, start: int, place: int) -> None:
        """Measure all rounds of a load behind each other: "auto" stays at it, as at a steady load.

        Args:
            place: of the load; each begins with another order.
        """
        began, rounds = time.perf_counter(), self.settings.rounds_of(load)
        self._learn(load, start)
        learnt = time.perf_counter()
        again = self._again(load)
        for number in range(rounds):
            turn = start * rounds + number
            for one in turns_of(self.settings.held, again, turn + place):
                self._take(one, load, turn, start)
        ended = time.perf_counter()
        name = f"start {start + 1} of {self.settings.starts}, {load.shown} requests"
        spent = f"{learnt - began:.0f} s of learning, {ended - learnt:.0f} s of turns"
        print(f"{name}, context {load.context}: {spent}", flush=True)

    def _again(self, load: LoadShape) -> ServedConfig:
        """Choose the K that is held twice: the best one of the starts so far."""
        cells, held = [cell for cell in self.cells if cell.load == load], self.settings.held
        return best_of(held, rates_of(cells, "cpu", piece_s=1.0)) if cells else held[-1]

    def _learn(self, load: LoadShape, start: int) -> None:
        """Let the controller try its lengths, as in a server that has been up for a while."""
        steps, number = 0, self.settings.starts * self.settings.rounds_of(load) + start
        while steps < self.settings.first_steps:
            wanted = load_to_learn(self.settings, load, number, self.prompts[load.context])
            steps += self.engines.of(AUTO).phases(wanted).steps
            number += self.settings.starts

    def _take(self, turn: Turn, load: LoadShape, number: int, start: int) -> None:
        wanted = load_of_turn(self.settings, load, number, self.prompts[load.context], turn.draft_length)
        with OtherWork().during() as others:
            found = self.engines.of(turn.engine).phases(wanted)
        cell = cell_of(turn, load, wanted, found, start=start, round=number, other_cores=others.cores)
        self.cells.append(cell)


def cell_of(
    turn: Turn,
    load: LoadShape,
    wanted: PhasedLoad,
    found: PhasedSteps,
    *,
    other_cores: float,
    **where: int,
) -> LengthsCell:
    """Make the record of what was measured.

    Args:
        where: start and round.
    """
    return LengthsCell(
        served=turn.served, again=turn.again, load=load, **where,
        cpu_s=round(found.cpu_s, 5), wall_s=round(found.wall_s, 5), steps=found.steps,
        greedy=_of_temperature(0.0, wanted, found), sampled=_of_temperature(1.0, wanted, found),
        decoded=found.decoded, piece_s=found.piece_s, drafts=found.drafts, drafted=found.drafted,
        accepted=found.accepted, other_cores=round(other_cores, 3),
        by_length=[
            LengthSteps(k=k, is_probe=is_probe, steps=steps, cpu_s=round(cpu_s, 5),
                        wall_s=round(wall_s, 5), tokens=tokens)
            for k, is_probe, steps, cpu_s, wall_s, tokens in found.by_length
        ],
    )  # fmt: skip


def _of_temperature(temperature: float, load: PhasedLoad, found: PhasedSteps) -> tuple[int, int]:
    """Tokens of these prompts, and the steps that gave them."""
    pairs = zip(found.of_prompt, load.temperatures, strict=True)
    counted = [pair for pair, own in pairs if own == temperature]
    return sum(tokens for tokens, _ in counted), sum(steps for _, steps in counted)
