"""What the demo shows: one table and one picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.table import Table


@dataclass(frozen=True)
class Row:
    name: str
    tokens: int
    seconds: float
    drafts: int  # 0 without a draft
    accepted: list[int]  # per position

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

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
        return 1000 * self.seconds / self.tokens * self.acceptance_length


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
            f"{row.tokens_per_second / rows[0].tokens_per_second:.2f}x",
        )
    result.caption = "acceptance length: tokens per target step, the bonus token included"
    return result


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
        [
            f"{row.tokens_per_second:.0f} ({row.tokens_per_second / rows[0].tokens_per_second:.2f}x)"
            for row in rows
        ],
    )
    right.set(title="Decoding, one request at a time", ylabel="tokens/s")
    right.margins(y=0.12)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
