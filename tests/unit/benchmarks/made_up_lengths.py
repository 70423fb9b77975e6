"""Made-up cells of `python -m benchmarks.draft_lengths`, of known rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.draft_lengths.lengths_result import (
    AUTO,
    LengthsCell,
    LengthsResult,
    LengthsSettings,
    LengthSteps,
    LoadShape,
)
from vllm_eagle_ext.measure.tune.results import NONE, ServedConfig

ONE, MANY = LoadShape(requests=1, context=64), LoadShape(requests=8, context=64)
RAMP = LoadShape(requests=8, context=64, ramp=True)
ZERO, SHORT, FULL = (ServedConfig(name="held", k=k) for k in (0, 1, 4))
# Tokens per CPU-second over no draft.
OVER_NONE = {ZERO: 0.9, SHORT: 1.2, FULL: 1.6}
AUTO_OVER_BEST = (0.99, 1.0, 1.01)
# Of "auto", half of its time each.
BY_LENGTH = ((4, False), (0, True))


def settings(pair: str = "dense", *, sampled: float = 0.0, starts: int = 3) -> LengthsSettings:
    return LengthsSettings(
        pair=pair, target="t", draft="d", k=4, lengths=[0, 1, 4], eagle_ext={}, engine={}, prompts="p",
        prompt_tokens={64: 80.0}, requests=[1, 8], contexts=[64], sampled=sampled, starts=starts,
        rounds=2, tokens=10, texts=8, first_steps=160,
    )  # fmt: skip


def cell(served: ServedConfig, load: LoadShape, start: int, rate: float, **more) -> LengthsCell:
    """100 tokens at this rate over 10 per second; greedy requests have 4 tokens of a step, others 1.

    In each start all is twice as slow as in the one before, the piece of reference work, too.
    """
    slower = 2.0**start
    values = {
        "round": 0, "cpu_s": 10 / rate * slower, "wall_s": 20 / rate * slower, "piece_s": 0.001 * slower,
        "steps": 40, "greedy": (80, 20), "sampled": (20, 20), "decoded": 50, "drafted": 125,
    }  # fmt: skip
    if served == AUTO:
        values["by_length"] = [
            LengthSteps(k=k, is_probe=is_probe, steps=20, tokens=50, cpu_s=values["cpu_s"] / 2,
                        wall_s=values["wall_s"] / 2)
            for k, is_probe in BY_LENGTH
        ]  # fmt: skip
    return LengthsCell(served=served, load=load, start=start, **(values | more))


def cells_of(
    load: LoadShape,
    over_none: Mapping[ServedConfig, float] | Sequence[Mapping[ServedConfig, float]],
    auto: Sequence[float],
    again: float = 1.0,
) -> list[LengthsCell]:
    """All cells of a load.

    Args:
        over_none: of each K, where it does not change, or by start.
        auto: its rate over no draft, by start.
        again: the largest K by the engine of "auto", over the other engine's.
    """
    cells = []
    for start, rate in enumerate(auto):
        own = over_none if isinstance(over_none, Mapping) else over_none[start]
        cells.append(cell(NONE, load, start, 1.0))
        cells += [cell(served, load, start, own[served]) for served in own]
        cells.append(cell(AUTO, load, start, rate))
        cells.append(cell(FULL, load, start, own[FULL] * again, again=True))
    return cells


def result_of(own: LengthsSettings, cells: list[LengthsCell]) -> LengthsResult:
    return LengthsResult(
        command="python -m benchmarks.draft_lengths", started="2026-11-23T00:00:00+00:00", cores=2,
        machine={"processor": "a processor", "vllm": "0.32.0", "torch": "2.9"}, load_average=0.1,
        settings=own, cells=cells,
    )  # fmt: skip


def result(
    pair: str = "dense", over_best: Sequence[float] = AUTO_OVER_BEST, *, sampled: float = 0.0
) -> LengthsResult:
    """In which the largest K is the best one everywhere."""
    own = settings(pair, sampled=sampled, starts=len(over_best))
    auto = [OVER_NONE[FULL] * one for one in over_best]
    return result_of(own, [one for load in own.loads for one in cells_of(load, OVER_NONE, auto)])
