"""What the demo shows: tables, sentences on what they mean, and one picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from statistics import quantiles

from rich import box
from rich.table import Table

from vllm_eagle_ext.measure.engine.load import Answer, Measured
from vllm_eagle_ext.measure.engine.machine import DISTURBED


@dataclass
class Row:
    """What one variant did at one number of requests: a turn for each group of prompts."""

    name: str
    turns: list[Measured] = field(default_factory=list)

    @property
    def answers(self) -> list[Answer]:
        return [answer for turn in self.turns for answer in turn.answers]

    @property
    def texts(self) -> list[list[int]]:
        return [answer.tokens for answer in self.answers]

    @property
    def tokens_per_second(self) -> float:
        return sum(map(len, self.texts)) / sum(turn.seconds for turn in self.turns)

    def speed_up(self, plain: Row) -> float:
        return self.tokens_per_second / plain.tokens_per_second

    def quartiles(self, plain: Row) -> tuple[float, float]:
        """Return between which speed-ups half of the turns lie."""
        gains = [_speed(a) / _speed(b) for a, b in zip(self.turns, plain.turns, strict=True)]
        if len(gains) == 1:
            return gains[0], gains[0]
        low, _, high = quantiles(gains, n=4, method="inclusive")
        return low, high


def _speed(turn: Measured) -> float:
    return sum(map(len, turn.texts)) / turn.seconds


def acceptance(answers: Iterable[Answer]) -> list[float]:
    """Return the share of drafts that were accepted, per position; [] without a draft."""
    histograms = [answer.histogram for answer in answers]
    by_accepted = [sum(column) for column in zip_longest(*histograms, fillvalue=0)]
    drafts = sum(by_accepted)
    return [sum(by_accepted[place:]) / drafts for place in range(1, len(by_accepted))] if drafts else []


def length(answers: Iterable[Answer]) -> float:
    """Return the tokens per step of the target, its own token included."""
    return 1 + sum(acceptance(answers))


def table(rows: Sequence[Row], title: str, other_cores: float, cores: int) -> Table:
    """Return speed and acceptance of each variant.

    other_cores: of `cores`, those that other work kept busy meanwhile.
    """
    if other_cores > DISTURBED * cores:
        title += f"\nDO NOT TRUST THESE TIMES: other work kept {other_cores:.1f} of {cores} cores busy"
    result = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1))
    result.add_column("draft", no_wrap=True)
    result.add_column("tokens/s", justify="right")
    result.add_column("accept.\nlength", justify="right")
    result.add_column("acceptance\nper position", no_wrap=True)
    result.add_column("half of the\nturns between", justify="right", no_wrap=True)
    result.add_column("speed-up", justify="right", no_wrap=True)
    for row in rows:
        low, high = row.quartiles(rows[0])
        shares = acceptance(row.answers)
        result.add_row(
            row.name, f"{row.tokens_per_second:.0f}", f"{1 + sum(shares):.2f}",
            " ".join(f"{share:.2f}" for share in shares) or "-",
            f"{low:.2f}x {high:.2f}x" if row is not rows[0] else "-", f"{row.speed_up(rows[0]):.2f}x",
        )  # fmt: skip
    result.caption = "acceptance length: tokens per target step, the target's own token included"
    return result


def by_category(rows: Sequence[Row], categories: Sequence[str]) -> Table:
    """Return the acceptance length of each drafting row by the category of the prompt."""
    drafting = [row for row in rows if acceptance(row.answers)]
    result = Table(title="acceptance length by category", box=box.SIMPLE_HEAD, padding=(0, 1))
    result.add_column("category")
    result.add_column("prompts", justify="right")
    for row in drafting:
        result.add_column(row.name, justify="right")
    lengths = {
        category: [
            length(a for a, c in zip(row.answers, categories, strict=True) if c == category)
            for row in drafting
        ]
        for category in set(categories)
    }
    for category, values in sorted(lengths.items(), key=lambda item: -item[1][0]):
        shown = [f"{value:.2f}" for value in values]
        result.add_row(category, str(categories.count(category)), *shown)
    return result


def sentences(rows: Sequence[Row]) -> Iterator[str]:
    """Say where a gain does not stand out."""
    for row in rows[1:]:
        (low, high), gain = row.quartiles(rows[0]), row.speed_up(rows[0])
        if low < 1 < high:
            yield f"{row.name}: {gain:.2f}x is not a gain everywhere; some prompts gain, others lose."
        elif gain < 1:
            yield f"{row.name}: {gain:.2f}x. Drafting costs time here; serve this load without it."


def picture(results: dict[int, list[Row]], path: Path) -> None:
    """Draw acceptance per position, and tokens per second at each number of requests."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    loads = len(results)
    figure, axes = pyplot.subplots(1, 1 + loads, figsize=(4.5 * (1 + loads), 4), layout="constrained")
    colours = ("#7f7f7f", "#4c78a8", "#e45756")
    left = axes[0]
    for number, colour in enumerate(colours):
        rows = [rows[number] for rows in results.values()]
        if shares := acceptance(answer for row in rows for answer in row.answers):
            left.plot(range(1, len(shares) + 1), shares, marker="o", color=colour, label=rows[0].name)
    left.set(
        title="Acceptance per position", xlabel="position in the draft",
        ylabel="share of drafts accepted up to here", ylim=(0, 1),
    )  # fmt: skip
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.grid(alpha=0.3)
    left.legend()
    for axis, (requests, rows) in zip(axes[1:], results.items(), strict=True):
        speeds = [row.tokens_per_second for row in rows]
        bars = axis.bar([row.name for row in rows], speeds, color=colours)
        axis.bar_label(
            bars, [f"{row.tokens_per_second:.0f} ({row.speed_up(rows[0]):.2f}x)" for row in rows]
        )
        axis.set(title=f"{requests} request{'s' * (requests > 1)} at a time", ylabel="tokens/s")
        axis.margins(y=0.12)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
