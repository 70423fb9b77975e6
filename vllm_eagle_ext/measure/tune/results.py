# SPDX-License-Identifier: Apache-2.0
"""What a tune leaves in its folder: settings, and one line per measured cell."""

from __future__ import annotations

from typing import Any, Literal

from vllm_eagle_ext.measure.folder import Record, RunFolder

Schedule = tuple[tuple[int, int, int], ...]  # first and last number of requests, K
# Without a draft; every K in one engine; and what may be served: one K, vLLM's schedule, vLLM's adaptive
# verification.
Name = Literal["none", "held", "fixed", "schedule", "adaptive"]
Stage = Literal["sweep", "closing"]

SCHEDULE_KEY = "num_speculative_tokens_per_batch_size"
ADAPTIVE_KEY = "enable_adaptive_verification"
HEADER, CELLS = "tune.json", "cells.jsonl"


class ServedConfig(Record):
    """What an engine serves."""

    name: Name
    k: int = 0  # of "held" and "fixed"
    schedule: Schedule = ()

    @property
    def engine(self) -> ServedConfig:
        """What tells engines apart: one holds every K."""
        return ServedConfig(name="held") if self.name == "held" else self

    def k_at(self, requests: int) -> int | None:
        """K that so many requests get; None where it is chosen while serving."""
        if self.name == "schedule":
            return k_at(self.schedule, requests)
        return None if self.name == "adaptive" else self.k

    @property
    def shown(self) -> str:
        if self.name in ("held", "fixed"):
            return f"K={self.k}"
        return {
            "none": "no draft",
            "schedule": "schedule",
            "adaptive": "adaptive verification",
        }[self.name]


def k_at(schedule: Schedule, requests: int) -> int:
    """K that vLLM looks up: the last one is carried forward."""
    return next((k for _, last, k in schedule if requests <= last), schedule[-1][2])


NONE = ServedConfig(name="none")


class TuneSettings(Record):
    """What was asked for. Two runs of the same settings may be continued in one folder."""

    target: str
    draft: str
    speculative: dict[str, Any]  # speculative_config without a schedule, at the largest K
    lengths: list[int]  # that are measured, 0 included
    requests: list[int]
    contexts: list[int]  # tokens that each prompt has at least
    rounds: int
    steps: int  # timed, of each load
    together: bool  # all engines of a stage run beside each other
    surface_only: bool
    adaptive: bool = False
    temperature: float
    seed: int
    prompts: str  # a file, a data set or "built-in"
    num_prompts: int
    prompts_sha256: str  # of the token ids, by context
    prompt_tokens: dict[int, float]  # median, by context
    chat_template: bool
    thinking: bool | None
    engine: dict[str, Any]  # further keywords of LLM()
    eagle_ext: dict[str, Any]

    @property
    def k(self) -> int:
        return max(self.lengths)

    @property
    def chosen_while_serving(self) -> list[ServedConfig]:
        """What is measured beside one K and a schedule, because it was asked for."""
        return [ServedConfig(name="adaptive")] if self.adaptive else []

    @property
    def drafted(self) -> list[int]:
        """The lengths but 0."""
        return [k for k in self.lengths if k]


class ServedLoad(Record):
    """How busy an engine is: requests that decode together, and the context that they began with."""

    requests: int
    context: int


class Cell(Record):
    """One load of one engine, in one round."""

    stage: Stage
    served: ServedConfig
    load: ServedLoad
    round: int
    step_s: float  # median over the steps
    steps: int
    tokens: int  # of all requests in all of these steps
    context_tokens: float  # of one request in the middle
    drafts: int = 0  # requests times steps that verified drafts
    accepted: list[int] = []  # of them, per position
    other_cores: float | None = None  # that processes other than this one's kept busy meanwhile

    @property
    def length(self) -> float:
        """Tokens of a step and request."""
        return self.tokens / (self.steps * self.load.requests)

    @property
    def tokens_per_s(self) -> float:
        return self.load.requests * self.length / self.step_s


class TuneFolder(RunFolder[TuneSettings]):
    """The folder of a tune."""

    COMMAND = "tune"
    HEADER = HEADER
    LINES = (CELLS,)
    SETTINGS_RECORD = TuneSettings

    def cells(self, stage: Stage) -> list[Cell]:
        """Read the cells of a stage; of what was measured twice, the later."""
        found = (cell for cell in self.read(CELLS, Cell) if cell.stage == stage)
        return list({(cell.served, cell.load, cell.round): cell for cell in found}.values())

    def add(self, cell: Cell) -> None:
        self.write(CELLS, cell)
