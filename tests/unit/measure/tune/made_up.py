"""Folders of a tune that nothing was measured for: step times and acceptance by formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from vllm_eagle_ext.measure.folder import Context
from vllm_eagle_ext.measure.tune.order import loads, swept
from vllm_eagle_ext.measure.tune.report import TuneReport, report_of
from vllm_eagle_ext.measure.tune.results import (
    NONE,
    Cell,
    ServedConfig,
    ServedLoad,
    Stage,
    TuneFolder,
    TuneSettings,
)
from vllm_eagle_ext.measure.tune.run import closing_of
from vllm_eagle_ext.measure.tune.surface import expected_length

STEPS = 1000  # so many that lengths are hardly rounded


def memory_bound(load: ServedLoad, k: int) -> float:
    """A step is as long as the longer of reading weights and computing rows; the draft on top."""
    rows = load.requests * (k + 1)
    return max(0.008, 0.001 * rows) + 0.0005 * k + 1e-6 * load.context


@dataclass
class MadeUp:
    """`noise` of a turn is that of the machine, alike for all that take turns in it."""

    lengths: tuple[int, ...] = (0, 1, 2, 4)
    requests: tuple[int, ...] = (1, 4, 16)
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
    random: Random = field(default_factory=lambda: Random(0))

    def settings(self) -> TuneSettings:
        return TuneSettings(
            target="org/target", draft="org/draft",
            speculative={
                "method": "eagle3", "model": "org/draft", "num_speculative_tokens": max(self.lengths),
            },
            lengths=list(self.lengths), requests=list(self.requests), contexts=list(self.contexts),
            rounds=self.rounds, steps=STEPS, together=self.together, surface_only=self.surface_only,
            adaptive=self.adaptive, temperature=0.0, seed=0, prompts="built-in",
            num_prompts=40, prompts_sha256="0",
            prompt_tokens={context: context + 10.0 for context in self.contexts},
            chat_template=False, thinking=None, engine={}, eagle_ext={},
        )  # fmt: skip

    def context(self) -> Context:
        return Context(
            command="vllm-eagle tune", started="2026-01-01T00:00:00+00:00", versions={"vllm": "0.32.0"},
            device="a processor, 2 cores", environment={}, cores=2, load_average=0.1,
        )  # fmt: skip

    def cells(self, stage: Stage, served: Iterable[ServedConfig]) -> list[Cell]:
        served, found = list(served), []
        for number in range(self.rounds):
            for load in loads(self.settings()):
                machine = 1 + self.noise * self.random.random()
                found += [self._cell(stage, one, load, number, machine) for one in served]
        return found

    def _cell(
        self, stage: Stage, served: ServedConfig, load: ServedLoad, number: int, machine: float
    ) -> Cell:
        k = served.k_at(load.requests)
        if k is None:
            k = max(self.lengths, key=lambda k: expected_length(self.rate, k) / self.step_s(load, k))
        seconds = self.step_s(load, k) + (self.awake_s if served != NONE and not k else 0)
        if served.name == "adaptive":
            seconds /= self.adaptive_gain
        return Cell(
            stage=stage, served=served, load=load, round=number,
            step_s=seconds * machine * (1 + self.own_noise * self.random.random()), steps=STEPS,
            tokens=round(expected_length(self.rate, k) * STEPS * load.requests),
            context_tokens=load.context + 50.0,
            drafts=STEPS * load.requests if k else 0,
            accepted=[round(self.rate ** (1 + j) * STEPS * load.requests) for j in range(k)],
            other_cores=0.0,
        )  # fmt: skip

    def folder(self, path: Path) -> TuneFolder:
        """A folder with all cells of both stages."""
        folder = TuneFolder(path)
        folder.begin(self.settings(), self.context())
        for cell in self.cells("sweep", swept(self.settings())):
            folder.add(cell)
        if closing := closing_of(self.settings(), folder):
            for cell in self.cells("closing", closing):
                folder.add(cell)
        return folder

    def report(self, path: Path) -> TuneReport:
        return report_of(self.folder(path))
