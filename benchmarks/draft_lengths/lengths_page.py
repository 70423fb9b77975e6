# SPDX-License-Identifier: Apache-2.0
"""Writes the tables and pictures of docs/draft_lengths.md from benchmarks/results/.

python -m benchmarks.draft_lengths.lengths_page
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.draft_lengths.lengths_picture import draw_lengths
from benchmarks.draft_lengths.lengths_result import AUTO, Clock, LengthsResult
from benchmarks.draft_lengths.load_summary import LoadSummary, accepted_tokens, goals_of, summary_of
from benchmarks.draft_lengths.tiny_pairs import PAIRS
from benchmarks.performance_page import table, with_part
from vllm_eagle_ext.measure.intervals import Interval
from vllm_eagle_ext.measure.tune.results import NONE, ServedConfig

TEMPLATE = Path(__file__).parent / "page_template.md"
PAGE = Path("docs/draft_lengths.md")
_NAMES = {"cpu": "tokens per CPU-second", "wall": "tokens per second"}
_ZERO = ServedConfig(name="held", k=0)


def result_file(pair: str) -> Path:
    return Path(f"benchmarks/results/draft_lengths_{pair}_cpu.json")


def picture_file(pair: str) -> Path:
    return Path(f"docs/images/draft_lengths_{pair}.png")


def write_page(root: Path) -> None:
    """Write page and pictures below a folder, of the pairs whose results lie there."""
    page = root / PAGE
    page.parent.mkdir(parents=True, exist_ok=True)
    text = page.read_text() if page.exists() else TEMPLATE.read_text()
    for pair in PAIRS:
        file = root / result_file(pair)
        if file.exists():
            result = LengthsResult.read(file)
            picture = root / picture_file(pair)
            picture.parent.mkdir(parents=True, exist_ok=True)
            draw_lengths(result, picture)
            text = with_part(text, pair, part_of(result), page)
    page.write_text(text)


def part_of(result: LengthsResult) -> str:
    """What the page says of a pair."""
    pair = result.settings.pair
    picture = (
        f"![tokens per CPU-second by requests, and over no draft](images/{picture_file(pair).name})"
    )
    parts = [picture, "\n".join(measured_on(result)), goals(result)]
    for clock in ("cpu", "wall"):
        parts += [f"### {pair.capitalize()}: {_NAMES[clock]}", by_load(result, clock)]
    parts += [f"### {pair.capitalize()}: each K over no draft", by_length(result)]
    return "\n\n".join(parts) + "\n"


def measured_on(result: LengthsResult) -> Iterator[str]:
    """The machine, and what limits the figures."""
    settings, machine = result.settings, result.machine
    greedy, sampled = accepted_tokens(result)
    versions = ", ".join(f"{name} {machine[name]}" for name in ("vllm", "torch") if name in machine)
    yield (
        f"{machine['processor']}, {result.cores} cores; {versions}; {result.started[:10]}. "
        f"`{result.command}`: {settings.rounds} rounds, {settings.tokens} tokens of a request and load."
    )
    yield (
        f"Of {len(result.cells)} cells {result.disturbed} were disturbed by other work. Accepted tokens "
        f"of a draft of {settings.k}: {greedy:.2f} of greedy requests, {sampled:.2f} of sampled ones."
    )
    coverage = summary_of(result, settings.loads[0], "cpu").auto_over_best.coverage
    yield f"Intervals are those of the median over the rounds and cover it with {coverage:.0%}."


def goals(result: LengthsResult) -> str:
    """How many loads reach each goal, and which do not, by processor time."""
    judged: dict[str, list[tuple[LoadSummary, float, bool]]] = {}
    least: dict[str, float] = {}
    for load in result.settings.loads:
        found = summary_of(result, load, "cpu")
        for goal in goals_of(result.settings.pair, found):
            least[goal.what] = goal.least
            judged.setdefault(goal.what, []).append((found, goal.judged, goal.holds))
    lines = []
    for what, loads in judged.items():
        short = [(found.load, value) for found, value, holds in loads if not holds]
        missed = "; ".join(f"{load.shown}, {load.context}: {value:.3f}" for load, value in short)
        reached = f"{len(loads) - len(short)} of {len(loads)}"
        lines.append((what, f"{least[what]:.2f}", reached, missed or "-"))
    return table(("goal, by processor time", "at least", "loads that reach it", "others"), lines)


def by_load(result: LengthsResult, clock: Clock) -> str:
    """A line per load."""
    lines = []
    for load in result.settings.loads:
        found = summary_of(result, load, clock)
        lines.append(
            (
                f"{load.shown}, {load.context}",
                f"{found.rates[NONE].median:.0f}",
                f"{found.best.k}: {spread(found.over_none[found.best])}",
                spread(found.over_none[found.full]),
                spread(found.over_none[_ZERO]),
                spread(found.over_none[AUTO]),
                spread(found.auto_over_best),
                f"{found.auto_length:.2f}",
                "-" if found.first_over_best is None else f"{found.first_over_best:.2f}",
            )
        )
    head = (
        "requests, context", "no draft", "best K: over no draft", f"K={result.settings.k} over no draft",
        "K=0 over no draft", "auto over no draft", "auto over best K", "auto's mean K",
        f"its first {result.settings.first_steps} steps over best K",
    )  # fmt: skip
    return table(head, lines)


def by_length(result: LengthsResult) -> str:
    """Medians of each K, by processor time."""
    held = result.settings.held
    lines = []
    for load in result.settings.loads:
        over = summary_of(result, load, "cpu").over_none
        lines.append((f"{load.shown}, {load.context}", *(f"{over[one].median:.2f}" for one in held)))
    return table(("requests, context", *(one.shown for one in held)), lines)


def spread(found: Interval) -> str:
    return f"{found.median:.3f} ({found.low:.3f} to {found.high:.3f})"


def main() -> None:
    write_page(Path())


if __name__ == "__main__":
    main()
