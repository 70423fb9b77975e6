# SPDX-License-Identifier: Apache-2.0
"""Which engines a bench starts, in which order, and what is left of it."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from vllm_eagle_ext.measure.bench.results import EngineRecord, Measurement, Settings, Variant


@dataclass(frozen=True, slots=True)
class Turn:
    """One engine, and what is to be measured of it."""

    repeat: int
    variant: Variant
    missing: tuple[tuple[int, int], ...]  # concurrency, round


def variants(settings: Settings) -> list[Variant]:
    """Stock beside ours, so that what is compared runs one after the other."""
    found = [Variant(kind="none")] if "none" in settings.kinds else []
    for draft in settings.drafts:
        for k in settings.ks:
            kinds = [kind for kind in settings.kinds if kind != "none"]
            found += [Variant(kind=kind, draft=draft, k=k) for kind in kinds]
    if settings.config is not None:
        found.append(settings.config.variant)
    return found


def order(settings: Settings) -> Iterator[tuple[int, Variant]]:
    """Every second repeat in reverse: a machine that slows down does so for all alike."""
    for repeat in range(settings.repeats):
        found = variants(settings)
        yield from ((repeat, variant) for variant in (found if repeat % 2 == 0 else reversed(found)))


def outstanding(
    settings: Settings, engines: Sequence[EngineRecord], measurements: Sequence[Measurement]
) -> list[Turn]:
    """What a folder lacks; a turn without anything to measure is one whose parts were not taken apart.

    Engines beside each other measure a round anew where one of them lacks it: a ratio is of one time.
    """
    done = {(m.variant, m.repeat, m.concurrency) for m in measurements}
    ended = {(engine.variant, engine.repeat) for engine in engines if not engine.error}
    lacking = {
        (repeat, variant): _lacking(settings, repeat, variant, done)
        for repeat, variant in order(settings)
    }
    if settings.together:
        for repeat in range(settings.repeats):
            of_all = set().union(*(cells for (r, _), cells in lacking.items() if r == repeat))
            lacking |= {key: of_all for key in lacking if key[0] == repeat}
    return [
        Turn(repeat, variant, tuple(sorted(cells)))
        for (repeat, variant), cells in lacking.items()
        if cells or (repeat == 0 and (variant, repeat) not in ended)
    ]


def _lacking(
    settings: Settings, repeat: int, variant: Variant, done: Container[tuple[Variant, int, int]]
) -> set[tuple[int, int]]:
    """List the concurrency and round of each measurement that is not done."""
    return {
        (level, number)
        for level in settings.concurrency
        for number in range(settings.rounds)
        if (variant, repeat * settings.rounds + number, level) not in done
    }


def batches(settings: Settings, turns: Sequence[Turn]) -> list[list[Turn]]:
    """Group the turns into engines that run at the same time."""
    if not settings.together:
        return [[turn] for turn in turns]
    return [list(found) for _, found in groupby(turns, key=lambda turn: turn.repeat)]
