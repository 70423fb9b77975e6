"""What a soak has shown: figures, each beside its bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.soak.client import Tally
from tests.soak.watch import (
    ACCEPTED,
    DRAFTED,
    DRAFTS,
    ENDED,
    GENERATED,
    PREEMPTED,
    RUNNING,
    USED,
    WAITING,
    Sample,
)

WARM_UP = 0.25  # share of the time before memory and acceptance are looked at
WINDOW_S = 60
FILES_GROWTH = 8  # open files, from the first third after the warm-up to the last


# Resident memory of all processes. The worker's grows with new shapes of batches, on a CPU for some
# eight minutes; a request that is never let go would be seen after that, too.
GROWTH = 0.03  # from the first third after the warm-up to the last
LATE_GROWTH = 0.01  # within the last third
DRIFT = 0.10  # of acceptance: first and last window after the warm-up against the mean of all


@dataclass(frozen=True)
class Check:
    name: str
    figure: str
    bound: str
    holds: bool


@dataclass(frozen=True)
class Outcome:
    figures: dict[str, Any]
    checks: list[Check]

    @property
    def holds(self) -> bool:
        return all(check.holds for check in self.checks)


def acceptance(samples: Sequence[Sample]) -> list[float]:
    """Accepted share of the drafted tokens in equal spans of time, of about a minute each."""
    first, last = samples[0].seconds, samples[-1].seconds
    count = max(2, round((last - first) / WINDOW_S))
    limits = [first + (last - first) * n / count for n in range(count + 1)]
    at = [min(samples, key=lambda s: abs(s.seconds - limit)) for limit in limits]
    return [
        (b.metrics[ACCEPTED] - a.metrics[ACCEPTED]) / (b.metrics[DRAFTED] - a.metrics[DRAFTED])
        for a, b in pairwise(at)
    ]


@dataclass(frozen=True)
class Course:
    """How the server did over time, once warm."""

    memory: tuple[float, float]  # bytes: first third and last
    late_memory: tuple[float, float]  # within the last third
    files: tuple[float, float]
    rates: list[float]
    process_sets: int

    @property
    def drift(self) -> float:
        mean = sum(self.rates) / len(self.rates)
        return max(abs(self.rates[n] / mean - 1) for n in (0, -1))


def follow(samples: Sequence[Sample]) -> Course:
    warm = [sample for sample in samples if sample.seconds >= WARM_UP * samples[-1].seconds]
    early, late = _ends(warm)
    return Course(
        memory=(_resident(early), _resident(late)),
        late_memory=(_resident(_ends(late)[0]), _resident(_ends(late)[1])),
        files=(median(s.files for s in early), median(s.files for s in late)),
        rates=acceptance(warm),
        process_sets=len({tuple(sorted(sample.memory)) for sample in warm}),
    )


def _ends(samples: Sequence[Sample]) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """First third and last."""
    third = len(samples) // 3
    return samples[:third], samples[-third:]


def _resident(samples: Sequence[Sample]) -> float:
    return median(sample.resident() for sample in samples)


def conclude(
    tally: Tally, samples: Sequence[Sample], idle: dict[str, float], log: str, gap: float
) -> Outcome:
    course = follow(samples)
    figures = _figures(tally, samples, idle) | {
        "memory_mib": [round(value / 2**20) for value in (*course.memory, *course.late_memory)],
        "open_files": course.files,
        "acceptance_windows": [round(rate, 4) for rate in course.rates],
        "near_tie_gaps": sorted(tally.gaps),
    }
    return Outcome(figures, [*_answers(tally, idle, log, gap), *_steady(course)])


def _answers(tally: Tally, idle: dict[str, float], log: str, gap: float) -> list[Check]:
    shares = idle[RUNNING], idle[WAITING], idle[USED]
    traces = log.count("Traceback (most recent call last)")
    worst = max(tally.gaps, default=0.0)
    return [
        Check("requests that failed", str(tally.error_count), "0", tally.error_count == 0),
        Check("tracebacks in the server's log", str(traces), "0", traces == 0),
        Check("running, waiting, KV-cache blocks used when idle", ", ".join(f"{n:g}" for n in shares),
              "0, 0, 0", not any(shares)),
        Check("requests that their clients abandoned", str(tally.abandoned), "> 0", tally.abandoned > 0),
        Check("greedy answers compared", str(tally.compared), "> 0", tally.compared > 0),
        Check("widest gap where one parts from its solo answer", f"{worst:.4f}", f"<= {gap:g}",
              worst <= gap),
    ]  # fmt: skip


def _steady(course: Course) -> list[Check]:
    growth, late = (last / first - 1 for first, last in (course.memory, course.late_memory))
    files = course.files[1] - course.files[0]
    return [
        Check("memory, last third over first", f"{growth:+.2%}", f"<= {GROWTH:.0%}",
              growth <= GROWTH),
        Check("memory, within the last third", f"{late:+.2%}", f"<= {LATE_GROWTH:.0%}",
              late <= LATE_GROWTH),
        Check("open files, last third less first", f"{files:+.0f}", f"<= {FILES_GROWTH}",
              files <= FILES_GROWTH),
        Check("processes, the same throughout", str(course.process_sets == 1), "True",
              course.process_sets == 1),
        Check("acceptance, first and last window off the mean", f"{course.drift:.1%}",
              f"<= {DRIFT:.0%}", course.drift <= DRIFT),
    ]  # fmt: skip


def _figures(tally: Tally, samples: Sequence[Sample], idle: dict[str, float]) -> dict[str, Any]:
    first, last = samples[0].metrics, samples[-1].metrics
    seconds = samples[-1].seconds - samples[0].seconds
    drafts = last[DRAFTS] - first[DRAFTS]
    return {
        "seconds": round(seconds),
        "requests": sum(tally.sent.values()),
        "by_kind": dict(tally.sent.most_common()),
        "by_end": dict(tally.ends.most_common()),
        "compared_tokens": tally.compared_tokens,
        "parted": len(tally.gaps),
        "ended": {
            key.split("/")[1]: value for key, value in idle.items() if key.startswith(f"{ENDED}/")
        },
        "tokens_per_s": round((last[GENERATED] - first[GENERATED]) / seconds),
        "acceptance_length": round(1 + (last[ACCEPTED] - first[ACCEPTED]) / drafts, 3),
        "preemptions": idle[PREEMPTED],
        "most_running": max(sample.metrics[RUNNING] for sample in samples),
        "most_used": round(max(sample.metrics[USED] for sample in samples), 3),
        "memory_mib_by_time": {
            part: [round(s.resident(part) / 2**20) for s in samples[:: len(samples) // 30 or 1]]
            for part in sorted({part for part, _ in samples[-1].memory})
        },
        "errors": tally.errors,
    }


def show(outcome: Outcome, title: str) -> None:
    console = Console(width=110)
    table = Table(title=title, box=None, header_style="bold")
    for name in ("", "found", "bound", ""):
        table.add_column(name)
    for check in outcome.checks:
        table.add_row(check.name, check.figure, check.bound, "" if check.holds else "[red]broken[/]")
    console.print(table)
    for name, value in outcome.figures.items():
        console.print(f"{name}: {value}", markup=False, highlight=False, soft_wrap=True)
