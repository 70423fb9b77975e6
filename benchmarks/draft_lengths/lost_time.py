# SPDX-License-Identifier: Apache-2.0
"""Where the time of "auto" goes that the best K would not have needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.draft_lengths.lengths_result import AUTO, LengthsCell, LengthsResult, LoadShape
from benchmarks.draft_lengths.load_summary import best_of, rates_of
from vllm_eagle_ext.measure.tune.results import NONE, ServedConfig

PROBES, OTHERS, BEST = "probes", "other K", "the best K itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTime:
    """One load by processor time at the machine's usual speed, all starts together.

    The steps of "auto" lose what they took beyond the time in which the best K of the other starts makes
    as many tokens in this one. What is lost together is that of the whole cell.
    """

    load: LoadShape
    step_s: dict[str, float]  # of "no draft", "K=0" and "auto"
    time_share: dict[int, float]  # of the time of "auto", by K, without probes
    probe_share: float
    lost_s: dict[str, float]  # by step of "auto": PROBES, OTHERS, BEST; below 0: won


def lost_time_of(result: LengthsResult, load: LoadShape) -> LostTime:
    """Split what "auto" lost at a load that was measured."""
    cells = [cell for cell in result.cells if cell.load == load and not cell.again]
    held, piece_s = result.settings.held, result.piece_s
    rates = rates_of(cells, "cpu", piece_s)
    lost, spent = dict.fromkeys((PROBES, OTHERS, BEST), 0.0), dict.fromkeys(result.settings.lengths, 0.0)
    steps, probes_s = 0, 0.0
    for cell in (cell for cell in cells if cell.served == AUTO):
        best = best_of(held, rates, without=cell.start)
        for k, is_probe, seconds, tokens, count in _parts(cell, piece_s):
            kind = PROBES if is_probe else BEST if k == best.k else OTHERS
            lost[kind] += seconds - tokens / rates[best][cell.start]
            steps += count
            if is_probe:
                probes_s += seconds
            else:
                spent[k] += seconds
    total = probes_s + sum(spent.values())
    return LostTime(
        load=load,
        step_s={
            name: _step_s(cells, served, piece_s)
            for name, served in (("no draft", NONE), ("K=0", held[0]), ("auto", AUTO))
        },
        time_share={k: seconds / total for k, seconds in spent.items()},
        probe_share=probes_s / total,
        lost_s={kind: seconds / steps for kind, seconds in lost.items()},
    )


def _parts(cell: LengthsCell, piece_s: float) -> Iterator[tuple[int, bool, float, int, int]]:
    """K, whether a probe chose it, seconds, tokens and steps."""
    for one in cell.by_length:
        yield one.k, one.is_probe, one.cpu_s * piece_s / cell.piece_s, one.tokens, one.steps


def _step_s(cells: list[LengthsCell], served: ServedConfig, piece_s: float) -> float:
    own = [cell for cell in cells if cell.served == served]
    return sum(cell.seconds("cpu", piece_s) for cell in own) / sum(cell.steps for cell in own)
