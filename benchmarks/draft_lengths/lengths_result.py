# SPDX-License-Identifier: Apache-2.0
"""What a run measured, as it is committed: settings, machine, a cell per variant, load and turn."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import median
from typing import Any, Literal

from vllm_eagle_ext.measure.engine.machine import DISTURBED
from vllm_eagle_ext.measure.folder import Record
from vllm_eagle_ext.measure.tune.results import NONE, ServedConfig

Clock = Literal["cpu", "wall"]
AUTO = ServedConfig(name="auto")
MANY = 8  # requests, beyond which each decodes fewer tokens


class LoadShape(Record):
    """How busy an engine is: so many requests from their first token on, or a ramp up to them."""

    requests: int
    context: int
    ramp: bool = False

    @property
    def phases(self) -> list[int]:
        """Requests at a time, phase by phase."""
        if not self.ramp:
            return [self.requests]
        up = [1 << power for power in range(self.requests.bit_length()) if 1 << power < self.requests]
        return [*up, self.requests, *reversed(up)]

    @property
    def shown(self) -> str:
        return f"1 to {self.requests} to 1" if self.ramp else str(self.requests)


class LengthsSettings(Record):
    pair: str
    target: str
    draft: str
    k: int
    lengths: list[int]  # the menu, 0 and K among them
    eagle_ext: dict[str, Any]
    engine: dict[str, Any]
    prompts: str
    prompt_tokens: dict[int, float]  # median, by context
    requests: list[int]
    contexts: list[int]
    sampled: float  # share of the requests that are sampled, at temperature 1
    starts: int  # of all engines: the sample
    rounds: int  # of a start at each load, at most
    tokens: int  # of a request where few decode; see `tokens_of`
    texts: int  # of a start, load and variant, behind which it has no further round
    first_steps: int  # of "auto" at each load of a start, before it is measured

    def rounds_of(self, load: LoadShape) -> int:
        return min(self.rounds, math.ceil(self.texts / load.requests))

    def tokens_of(self, load: LoadShape) -> int:
        """Tokens of a request and phase."""
        part = 4 if load.ramp else 2 if load.requests > MANY else 1
        return max(1, self.tokens // part)

    @property
    def loads(self) -> list[LoadShape]:
        """Those of each context, then the ramp."""
        steady = [
            LoadShape(requests=requests, context=context)
            for context in self.contexts
            for requests in self.requests
        ]
        top = max(self.requests)
        ramp = [LoadShape(requests=top, context=min(self.contexts), ramp=True)] if top > 1 else []
        return steady + ramp

    @property
    def served(self) -> list[ServedConfig]:
        return [NONE, *self.held, AUTO]

    @property
    def held(self) -> list[ServedConfig]:
        return [ServedConfig(name="held", k=k) for k in self.lengths]


class LengthSteps(Record):
    """Steps for which "auto" chose one K, as a probe or not."""

    k: int
    is_probe: bool
    steps: int
    cpu_s: float
    wall_s: float
    tokens: int


class LengthsCell(Record):
    """One load of one variant in one turn; steps are those of decoding alone."""

    served: ServedConfig
    again: bool = False  # K held by the engine of "auto", a second time in this turn
    load: LoadShape
    start: int
    round: int
    cpu_s: float
    wall_s: float
    steps: int
    greedy: tuple[int, int]  # tokens of these requests, and the steps of each that gave them
    sampled: tuple[int, int]
    decoded: int  # steps of each request, those beside prompts too
    piece_s: float  # CPU time of a piece of reference work between the steps, the mean
    drafts: int = 0  # of these
    drafted: int = 0  # tokens
    accepted: list[int] = []  # per position
    other_cores: float = 0.0  # that processes other than these kept busy meanwhile
    by_length: list[LengthSteps] = []  # of "auto"

    @property
    def tokens(self) -> int:
        return self.greedy[0] + self.sampled[0]

    def seconds(self, clock: Clock, piece_s: float) -> float:
        """Tell its time at the speed at which a piece of reference work takes `piece_s`."""
        return (self.cpu_s if clock == "cpu" else self.wall_s) * piece_s / self.piece_s


class LengthsResult(Record):
    command: str
    started: str  # ISO 8601, UTC
    machine: dict[str, Any]
    cores: int
    load_average: float | None  # of one minute, before the first engine
    settings: LengthsSettings
    cells: list[LengthsCell]

    @property
    def disturbed(self) -> int:
        """Cells beside which other processes kept more than DISTURBED of the cores busy."""
        return sum(cell.other_cores > DISTURBED * self.cores for cell in self.cells)

    @property
    def piece_s(self) -> float:
        """CPU time of a piece of reference work, the median of the cells: this machine's usual speed."""
        return median(cell.piece_s for cell in self.cells)

    def save(self, path: Path) -> None:
        """Write it with a cell a line."""
        head = json.dumps(self.model_dump(exclude={"cells"}), indent=1)
        lines = ",\n".join(f"  {cell.model_dump_json(exclude_defaults=True)}" for cell in self.cells)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{head[:-2]},\n "cells": [\n{lines}\n ]\n}}\n')

    @classmethod
    def read(cls, path: Path) -> LengthsResult:
        return cls.model_validate_json(path.read_text())
