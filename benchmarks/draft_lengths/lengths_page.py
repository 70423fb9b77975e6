# SPDX-License-Identifier: Apache-2.0
"""Writes the tables and pictures of docs/draft_lengths.md from benchmarks/results/.

python -m benchmarks.draft_lengths.lengths_page
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.draft_lengths.lengths_picture import draw_lengths
from benchmarks.draft_lengths.lengths_result import AUTO, Clock, LengthsResult, LoadShape
from benchmarks.draft_lengths.load_summary import LoadSummary, accepted_tokens, goals_of, summary_of
from benchmarks.draft_lengths.lost_time import lost_time_of
from benchmarks.draft_lengths.tiny_pairs import MIXES, PAIRS
from benchmarks.performance_page import table, with_part
from vllm_eagle_ext.measure.intervals import Interval
from vllm_eagle_ext.measure.tune.results import NONE, ServedConfig

TEMPLATE = Path(__file__).parent / "page_template.md"
PAGE = Path("docs/draft_lengths.md")
_CLOCKS: dict[Clock, str] = {"cpu": "processor", "wall": "wall"}
_ZERO = ServedConfig(name="held", k=0)


def result_file(pair: str, mix: str) -> Path:
    return Path(f"benchmarks/results/draft_lengths_{pair}_{mix}_cpu.json")


def picture_file(pair: str, mix: str) -> Path:
    return Path(f"docs/images/draft_lengths_{pair}_{mix}.png")


def write_part(root: Path, result: LengthsResult) -> None:
    """Write a result, its picture and its part of the page below a folder."""
    pair, mix = result.settings.pair, MIXES[result.settings.sampled]
    result.save(root / result_file(pair, mix))
    picture = root / picture_file(pair, mix)
    picture.parent.mkdir(parents=True, exist_ok=True)
    draw_lengths(result, picture)
    page = root / PAGE
    text = page.read_text() if page.exists() else TEMPLATE.read_text()
    page.write_text(with_part(text, f"{pair}_{mix}", part_of(result), page))


def part_of(result: LengthsResult) -> str:
    """What the page says of a pair and its prompts."""
    settings = result.settings
    name = picture_file(settings.pair, MIXES[settings.sampled]).name
    parts = [
        f"![tokens per CPU-second by requests, and over no draft](images/{name})",
        "\n".join(measured_on(result)),
        goals(result),
        "Tokens by processor time:",
        by_load(result, "cpu"),
        "Tokens by the wall clock:",
        by_load(result, "wall"),
        "Each K over no draft, by processor time, and A/A:",
        by_length(result),
        'Where the time of `"auto"` goes, by processor time:',
        lost_time(result),
    ]
    return "\n\n".join(parts) + "\n"


def measured_on(result: LengthsResult) -> Iterator[str]:
    """The machine, and what limits the figures."""
    settings, machine = result.settings, result.machine
    versions = ", ".join(f"{name} {machine[name]}" for name in ("vllm", "torch") if name in machine)
    yield (
        f"{machine['processor']}, {result.cores} cores; {versions}; {result.started[:10]}. "
        f"`{result.command}`: {settings.starts} starts of all engines."
    )
    kinds = zip(("greedy", "sampled"), accepted_tokens(result), strict=True)
    accepted = ", ".join(f"{found:.2f} of {kind} requests" for kind, found in kinds if found is not None)
    yield (
        f"Of {len(result.cells)} cells {result.disturbed} were disturbed by other work. Accepted tokens "
        f"of a draft of {settings.k}: {accepted}."
    )
    found = summary_of(result, settings.loads[0], "cpu").auto_over_best
    yield (
        f"Intervals are those of the median over {found.pairs} starts and cover it with "
        f"{found.coverage:.1%}."
    )


def goals(result: LengthsResult) -> str:
    """How many loads reach each goal, and which do not, by both clocks."""
    lines = []
    for clock, name in _CLOCKS.items():
        judged: dict[str, list[tuple[LoadSummary, float, bool]]] = {}
        least: dict[str, float] = {}
        for load in result.settings.loads:
            found = summary_of(result, load, clock)
            for goal in goals_of(result.settings, found):
                least[goal.what] = goal.least
                judged.setdefault(goal.what, []).append((found, goal.judged, goal.holds))
        for what, loads in judged.items():
            short = [(found.load, value) for found, value, holds in loads if not holds]
            missed = "; ".join(f"{named(load)}: {value:.3f}" for load, value in short)
            reached = f"{len(loads) - len(short)} of {len(loads)}"
            lines.append((what, name, f"{least[what]:.2f}", reached, missed or "-"))
    return table(("judged", "time", "at least", "loads that reach it", "others"), lines)


def by_load(result: LengthsResult, clock: Clock) -> str:
    """A line per load."""
    lines = []
    for load in result.settings.loads:
        found = summary_of(result, load, clock)
        lines.append(
            (
                named(load),
                f"{found.rates[NONE].median:.0f}",
                f"{best_shown(found)}: {spread(found.best_over_none)}",
                spread(found.over_none[found.full]),
                spread(found.over_none[_ZERO]),
                spread(found.over_none[AUTO]),
                spread(found.auto_over_best),
                spread(found.auto_over_full),
                f"{found.auto_length:.2f}",
            )
        )
    full = f"K={result.settings.k}"
    head = (
        "requests, context", "no draft", "best K: over no draft", f"{full} over no draft",
        "K=0 over no draft", "auto over no draft", "auto over best K", f"auto over {full}",
        "auto's mean K",
    )  # fmt: skip
    return table(head, lines)


def by_length(result: LengthsResult) -> str:
    """Medians of each K, by processor time, and what one K in two engines shows."""
    held = result.settings.held
    lines = []
    for load in result.settings.loads:
        found = summary_of(result, load, "cpu")
        ratios = (f"{found.over_none[one].median:.2f}" for one in held)
        lines.append((named(load), *ratios, spread(found.again)))
    return table(("requests, context", *(one.shown for one in held), "one K in two engines"), lines)


def lost_time(result: LengthsResult) -> str:
    """A line per load: what steps take, what "auto" does with its time, and what it loses."""
    lines = []
    for load in result.settings.loads:
        found = lost_time_of(result, load)
        shares = {f"K={k}": share for k, share in found.time_share.items()}
        shares["probes"] = found.probe_share
        lines.append(
            (
                named(load),
                *(f"{seconds * 1e3:.2f}" for seconds in found.step_s.values()),
                ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.005),
                *(f"{seconds * 1e3:+.2f}" for seconds in found.lost_s.values()),
                f"{sum(found.lost_s.values()) * 1e3:+.2f}",
            )
        )
    head = (
        "requests, context", "a step, ms: no draft", "K=0", "auto", "auto's time by K",
        "lost to the best K, ms of a step: in probes", "at other K", "at the best K itself", "together",
    )  # fmt: skip
    return table(head, lines)


def named(load: LoadShape) -> str:
    return f"{load.shown}, {load.context}"


def best_shown(found: LoadSummary) -> str:
    """Name the K that were chosen, that of the most starts first."""
    return " or ".join(str(one.k) for one, _ in Counter(found.best.values()).most_common())


def spread(found: Interval) -> str:
    return f"{found.median:.3f} ({found.low:.3f} to {found.high:.3f})"


def main() -> None:
    for pair in PAIRS:
        for mix in MIXES.values():
            if (file := result_file(pair, mix)).exists():
                write_part(Path(), LengthsResult.read(file))


if __name__ == "__main__":
    main()
