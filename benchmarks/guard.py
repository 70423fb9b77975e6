# SPDX-License-Identifier: Apache-2.0
"""Fails when this package has become slower than stock vLLM, by ratios of one run.

The margins are far below what was measured, for machines that are shared: a step
that waits for the host, or allocates, costs more than they leave.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import performance

BUILD = Path("build/bench-guard")
_LEVELS = "--concurrency 1,8 --variants stock,ours"
SIZE = "--repeats 2 --rounds 4 --num-prompts 24"


@dataclass(frozen=True)
class Guard:
    name: str
    what: str
    bench: str  # arguments of `vllm-eagle bench`
    least: float  # tokens/s over stock's, median of the pairs


GUARDS = (
    Guard("dense", "post-norm EAGLE-3, K=4: ours over stock",
          f"{performance.DENSE} {performance.SHORT} {performance.POSTNORM} -k 4 {_LEVELS} {SIZE}",
          0.93),
    Guard("per_token",
          "DFlash on a hybrid target, K=7: ours with one state block per draft token over stock",
          f"{performance.HYBRID} {performance.SHORT} -k 7 {_LEVELS} {SIZE} "
          '--eagle-ext {"hybrid_state":"per_token"}', 0.93),
    # State blocks of 64 KiB cannot pay for the replay's small operations on a CPU: .95 was measured.
    Guard("replay", "the same: ours with replay over stock",
          f"{performance.HYBRID} {performance.SHORT} -k 7 {_LEVELS} {SIZE}", 0.8),
)  # fmt: skip


def ratios(report: dict[str, Any]) -> Iterator[tuple[int, float | None]]:
    """By concurrency: the median over stock, None where it was not measured."""
    for row in report["rows"]:
        if row["variant"]["kind"] == "ours":
            against = row["against_stock"]
            yield row["concurrency"], against and against["median"]


def measured(guard: Guard) -> dict[str, Any] | None:
    """Its report; None where the bench failed."""
    if performance.run(guard.bench, BUILD / guard.name):
        return None
    path = BUILD / guard.name / "report.json"
    report: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return report


def judge(guard: Guard, report: dict[str, Any] | None) -> list[tuple[str, bool]]:
    """A line per concurrency, and whether it holds."""
    verdicts: list[tuple[str, bool]] = []
    if report is None:
        return [(f"{guard.what}: not served", False)]
    for level, ratio in ratios(report):
        if ratio is None:
            verdicts.append((f"{guard.what}, concurrency {level}: not measured", False))
            continue
        line = f"{guard.what}, concurrency {level}: {ratio:.3f}, at least {guard.least}"
        verdicts.append((line, ratio >= guard.least))
    return verdicts or [(f"{guard.what}: not served", False)]


def main() -> None:
    console = Console(highlight=False, soft_wrap=True)
    # All have run before any is printed: benches print much.
    verdicts = [verdict for guard in GUARDS for verdict in judge(guard, measured(guard))]
    for line, holds in verdicts:
        console.print(f"{'ok ' if holds else 'NO '} {line}")
    held = all(holds for _, holds in verdicts)
    if not held:
        console.print(f"Slower than it was, or a noisy run: see {BUILD}/*/ and run only this again.")
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
