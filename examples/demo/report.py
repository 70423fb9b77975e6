"""What the demo shows: one table and one picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from statistics import median

from rich import box
from rich.table import Table

from vllm_eagle_ext.measure.engine.load import Measured
from vllm_eagle_ext.measure.engine.machine import DISTURBED


@dataclass
class Row:
    name: str
    seconds: list[float] = field(default_factory=list)  # of each pass, over all prompts
    tokens: int = 0  # of one pass, like the counts below
    drafts: int = 0  # 0 without a draft
    accepted: list[int] = field(default_factory=list)  # per position

    def add(self, number: int, found: Measured) -> None:
        """Count a load of pass `number`, from 0. Texts are greedy: each pass decodes the same ones."""
        if number == len(self.seconds):
            self.seconds.append(0.0)
        self.seconds[number] += found.seconds
        if number == 0:
            self.tokens += sum(map(len, found.texts))
            self.drafts += found.drafts
            pairs = zip_longest(self.accepted, found.accepted, fillvalue=0)
            self.accepted = [a + b for a, b in pairs]

    @property
    def median_s(self) -> float:
        return median(self.seconds)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.median_s

    def speed_ups(self, plain: Row) -> list[float]:
        """Of each pass, lowest first."""
        return sorted(a / b for a, b in zip(plain.seconds, self.seconds, strict=True))

    @property
    def acceptance(self) -> list[float]:
        return [count / self.drafts for count in self.accepted] if self.drafts else []

    @property
    def acceptance_length(self) -> float:
        """Tokens per target step, the bonus token included."""
        return 1 + sum(self.acceptance)

    @property
    def step_ms(self) -> float:
        """Time per output token times acceptance length."""
        return 1000 * self.median_s / self.tokens * self.acceptance_length


def table(rows: list[Row], title: str) -> Table:
    result = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1))
    for column in ("draft", "tokens/s", "step\ntime", "accept.\nlength"):
        result.add_column(
            column, justify="left" if column == "draft" else "right", no_wrap=column == "draft"
        )
    result.add_column("acceptance\nper position", no_wrap=True)
    result.add_column("speed-up", justify="right", no_wrap=True)
    for row in rows:
        result.add_row(
            row.name,
            f"{row.tokens_per_second:.0f}",
            f"{row.step_ms:.2f} ms",
            f"{row.acceptance_length:.2f}",
            " ".join(f"{a:.2f}" for a in row.acceptance) or "-",
            f"{median(row.speed_ups(rows[0])):.2f}x",
        )
    result.caption = "acceptance length: tokens per target step, the bonus token included"
    return result


def over_the_passes(rows: list[Row], other_cores: float, cores: int) -> Iterator[str]:
    """How far the passes lie apart, and whether a speed-up can be trusted.

    other_cores: of `cores`, those that other work kept busy meanwhile.
    """
    doubtful = []
    for row in rows[1:]:
        found = row.speed_ups(rows[0])
        low, high, gain = found[0], found[-1], median(found) - 1
        yield f"{row.name}: {1 + gain:.2f}x, {low:.2f}x to {high:.2f}x over {len(found)} passes."
        if high - low > abs(gain):
            doubtful.append(row.name)
    if doubtful:
        yield (
            f"This machine was busy: between the passes of {' and '.join(doubtful)} lies more than the "
            "gain. Do not trust the figure: measure again when the machine is idle."
        )
    if other_cores > DISTURBED * cores:
        yield (
            f"Other work kept {other_cores:.1f} of {cores} cores busy: measure again when they are idle "
            "before you trust a time."
        )


def picture(rows: list[Row], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    colours = ("#7f7f7f", "#4c78a8", "#e45756")
    for row, colour in zip(rows, colours, strict=True):
        if row.drafts:
            positions = range(1, len(row.acceptance) + 1)
            left.plot(positions, row.acceptance, marker="o", color=colour, label=row.name)
    left.set(
        title="Acceptance per position",
        xlabel="position in the draft",
        ylabel="share of drafts accepted up to here",
        ylim=(0, 1),
    )
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.grid(alpha=0.3)
    left.legend()
    bars = right.bar([row.name for row in rows], [row.tokens_per_second for row in rows], color=colours)
    right.bar_label(
        bars,
        [f"{row.tokens_per_second:.0f} ({median(row.speed_ups(rows[0])):.2f}x)" for row in rows],
    )
    right.set(title="Decoding, one request at a time", ylabel="tokens/s")
    right.margins(y=0.12)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
