# SPDX-License-Identifier: Apache-2.0
"""What a run measured, as it is committed: settings, machine, a cell per variant, load and round."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any, Literal

from vllm_eagle_ext.measure.engine.machine import DISTURBED
from vllm_eagle_ext.measure.folder import Record
from vllm_eagle_ext.measure.tune.results import NONE, ServedConfig

Clock = Literal["cpu", "wall"]
AUTO = ServedConfig(name="auto")


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
    rounds: int
    starts: int = 1  # of all engines; the rounds are spread over them
    tokens: int  # of a request and phase
    texts: int  # of a cell, at least
    first_steps: int  # of "auto" at each load, before it is measured

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
    def fresh_rounds(self) -> set[int]:
        """Those before which all engines are started."""
        return {start * self.rounds // self.starts for start in range(self.starts)}

    @property
    def served(self) -> list[ServedConfig]:
        return [NONE, *self.held, AUTO]

    @property
    def held(self) -> list[ServedConfig]:
        return [ServedConfig(name="held", k=k) for k in self.lengths]


class LengthsCell(Record):
    """One load of one variant in one round; steps are those of decoding alone."""

    served: ServedConfig
    load: LoadShape
    round: int
    is_first: bool = False  # the first steps of "auto" at this load
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

    @property
    def tokens(self) -> int:
        return self.greedy[0] + self.sampled[0]

    def rate(self, clock: Clock, piece_s: float) -> float:
        """Tokens per second at the speed at which a piece of reference work takes `piece_s`."""
        seconds = self.cpu_s if clock == "cpu" else self.wall_s
        return self.tokens / seconds * self.piece_s / piece_s


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
