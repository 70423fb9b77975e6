# SPDX-License-Identifier: Apache-2.0
"""In which order a tune measures, and what is left of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from vllm_eagle_ext.measure.bench.estimate import COMPILED_S, EAGER_S
from vllm_eagle_ext.measure.tune.request import most_steps
from vllm_eagle_ext.measure.tune.results import NONE, Cell, ServedConfig, ServedLoad, Stage, TuneSettings

LEAST_PROMPTS = 4  # of a cell: fewer requests decode several loads behind each other
# Of a small model on two cores: a step of one request without a draft, what each further one and each
# drafted token add to it, and prompt tokens in a second.
_STEP_S, _PER_REQUEST, _PER_K, _PROMPT_TOKENS_PER_S = 0.007, 1 / 20, 0.12, 10_000


@dataclass(frozen=True, slots=True)
class CellTurn:
    """What takes turns at one load, in one round: its ratios are of one time."""

    load: ServedLoad
    round: int
    served: tuple[ServedConfig, ...]


def swept(settings: TuneSettings) -> list[ServedConfig]:
    return [NONE, *(ServedConfig(name="held", k=k) for k in settings.lengths)]


def missing_turns(
    settings: TuneSettings, served: Sequence[ServedConfig], cells: Collection[Cell]
) -> list[CellTurn]:
    """What a folder lacks; engines beside each other measure a turn anew where one of them lacks it."""
    done = {(cell.served, cell.load, cell.round) for cell in cells}
    found = []
    for number in range(settings.rounds):
        for load in loads(settings):
            missing = [one for one in served if (one, load, number) not in done]
            wanted = list(served) if settings.together and missing else missing
            if wanted:
                found.append(CellTurn(load, number, tuple(wanted[:: -1 if number % 2 else 1])))
    return found


def loads(settings: TuneSettings) -> list[ServedLoad]:
    return [
        ServedLoad(requests=requests, context=context)
        for context in settings.contexts
        for requests in settings.requests
    ]


def by_engines(settings: TuneSettings, turns: Sequence[CellTurn]) -> Iterator[list[CellTurn]]:
    """Turns of all engines, or those of each engine behind each other."""
    if settings.together:
        yield list(turns)
        return
    for engine in dict.fromkeys(one.engine for turn in turns for one in turn.served):
        own = [
            CellTurn(turn.load, turn.round, tuple(one for one in turn.served if one.engine == engine))
            for turn in turns
        ]
        yield [turn for turn in own if turn.served]


def waves(requests: int) -> int:
    """Loads of one cell."""
    return math.ceil(LEAST_PROMPTS / requests)


def prompts_of(turn: CellTurn, prompts: Sequence[list[int]]) -> list[list[list[int]]]:
    """The prompts of each wave: others in each round, the same for all that take turns."""
    requests = turn.load.requests
    first = turn.round * waves(requests) * requests
    return [
        [prompts[(first + wave * requests + n) % len(prompts)] for n in range(requests)]
        for wave in range(waves(requests))
    ]


def turns_s(settings: TuneSettings, turns: Sequence[CellTurn]) -> float:
    """Seconds of these turns, of a small model on two cores, without the starts of engines."""
    return sum(_cell_s(settings, turn, served) for turn in turns for served in turn.served)


def start_s(settings: TuneSettings) -> float:
    return EAGER_S if settings.engine.get("enforce_eager") else COMPILED_S


def engines_to_start(settings: TuneSettings, stage: Stage) -> int:
    """Engines of a stage, at most: the one without a draft goes on where all run beside each other."""
    if stage == "sweep":
        return 2
    return 2 + len(settings.chosen_while_serving) + (not settings.together)


def _cell_s(settings: TuneSettings, turn: CellTurn, served: ServedConfig) -> float:
    load = turn.load
    k = {"none": 0, "held": served.k, "fixed": served.k}.get(served.name, settings.k)
    step_s = _STEP_S * (1 + _PER_REQUEST * load.requests) * (1 + _PER_K * k)
    steps = most_steps(settings.steps, load.requests)
    prompt_s = settings.prompt_tokens[load.context] * load.requests / _PROMPT_TOKENS_PER_S
    return waves(load.requests) * (steps * step_s + prompt_s)
