"""The tables of whole texts."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.unit.measure.bench.made_up import FAST, SLOW, MadeUp
from vllm_eagle_ext.measure.bench.printed import TABLE_WIDTH, print_report

LONG = "some-organisation/EAGLE3-LLaMA3.1-Instruct-8B"


def printed(report, width: int = 80) -> list[str]:
    output = io.StringIO()
    console = Console(file=output, width=width, soft_wrap=True, highlight=False, emoji=False)
    print_report(report, console)
    assert console.width == width
    return [line.rstrip() for line in output.getvalue().splitlines()]


def section(lines: list[str], title: str) -> list[list[str]]:
    """The words of a table's lines, its header first."""
    start = next(number for number, line in enumerate(lines) if line.startswith(title))
    end = next((n for n in range(start, len(lines)) if not lines[n]), len(lines))
    return [line.split() for line in lines[start + 1 : end]]


def test_speeds():
    header, none, stock, ours = section(printed(MadeUp().report()), "concurrency 1")
    assert " ".join(header) == "variant draft K tokens/s spread x none x stock length step"
    assert " ".join(none) == "none 90.9 8% 1.00 11.00"
    assert stock[:3] == ["stock", "fast-draft", "3"]
    assert " ".join(ours[4:10]) == "8% 2.54 (2.54-2.54) 1.02 (1.02-1.02) 2.95"


def test_columns_of_what_was_not_measured_are_left_out():
    """Nor has one measurement a spread or an interval."""
    header, ours = section(printed(MadeUp(kinds=("ours",), repeats=1).report()), "concurrency 1")
    assert not {"none", "stock"} & {*header}
    assert ours[:6] == ["ours", "fast-draft", "3", "230.6", "-", "2.95"]


def test_acceptance_of_several_k():
    report = MadeUp(ks=(3, 5), drafts=(FAST, SLOW)).report()
    header, _, _, _, five, *_ = section(printed(report), "acceptance length, and per position")
    assert header[-5:] == ["1", "2", "3", "4", "5"]
    assert five == ["ours", "fast-draft", "5", "3.69", "0.80", "0.64", "0.51", "0.41", "0.33"]


@pytest.mark.parametrize("width", [40, 200])
def test_fits_and_loses_no_column(width):
    made = MadeUp(drafts=(LONG,), ks=(16,), first={LONG: 0.9}, concurrency=(1, 64), jitter=0.02)
    lines = printed(made.report(), width)
    tables = [n for n, line in enumerate(lines) if line.startswith("variant")]
    assert len(tables) == 3
    for start in tables:
        end = next(n for n in range(start, len(lines)) if not lines[n])
        assert max(len(line) for line in lines[start:end]) <= TABLE_WIDTH
        assert not any("…" in line for line in lines[start:end])
