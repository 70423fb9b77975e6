"""`python -m tests.fuzz --seed 1 --mutants 3000`: figures, and the smallest input of each failure."""

from __future__ import annotations

from typing import Annotated

import typer

from tests.fuzz.run import fuzz


def main(
    seed: int = 1,
    mutants: Annotated[int, typer.Option(min=0, help="0: the unbroken drafts only.")] = 3000,
) -> None:
    """Change drafts at random, and look at what the commands make of them."""
    report = fuzz(seed, mutants)
    report.show()
    raise SystemExit(1 if report.failed else 0)


if __name__ == "__main__":
    typer.run(main)
