from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.unit.measure.bench.made_up import FAST, OURS, SLOW, STOCK_ERROR, MadeUp
from vllm_eagle_ext.measure.bench.notes import premises, reason
from vllm_eagle_ext.measure.bench.table import TABLE_WIDTH, print_report

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


def test_main_table():
    header, none, stock, ours = section(printed(MadeUp().report()), "concurrency 1")
    assert (
        " ".join(header)
        == "variant draft K tokens/s spread x none x stock length step in draft TPOT TTFT"
    )
    assert " ".join(none) == "none 90.9 8% 1.00 11.00 11.07 20.00"
    assert stock[:3] == ["stock", "fast-draft", "3"]
    assert " ".join(ours[4:9]) == "8% 2.54 (2.54-2.54) 1.02 (1.02-1.02)"
    assert ours[9] == "2.95"


def test_requests_and_categories():
    """Each of three measurements has three requests, of 1, 3.5 and 4 tokens a step."""
    counted = ([8, 0, 0, 0], [0, 0, 4, 4], [0, 0, 0, 8])
    report = MadeUp(histograms=counted, categories=("code", "prose", None)).report()
    lines = printed(report)
    assert section(lines, "requests by")[1:] == [
        [kind, "fast-draft", "3", "1", "3", "0", "6"] for kind in ("stock", "ours")
    ]
    header, _, ours = section(lines, "acceptance length by category")
    assert header[-3:] == ["code", "prose", "(none)"]
    assert ours == ["ours", "fast-draft", "3", "1", "1", "3.5", "4"]
    (row,) = (row for row in report.rows if row.variant == OURS)
    assert row.requests_by_length == {"1-2": 3, "2-3": 0, "3-4": 6}
    assert row.length_by_category == {"code": 1.0, "prose": 3.5, "(none)": 4.0}


def test_without_categories_there_is_no_table_of_them():
    lines = printed(MadeUp(histograms=([8, 0, 0, 0],)).report())
    assert any(line.startswith("requests by") for line in lines)
    assert not any("by category" in line for line in lines)


def test_one_measurement_has_no_spread():
    """Neither 0 % nor an interval."""
    _, none, _, ours = section(printed(MadeUp(repeats=1).report()), "concurrency 1")
    assert none[:3] == ["none", "90.9", "-"]
    assert ours[:6] == ["ours", "fast-draft", "3", "230.6", "-", "2.54"]


def test_load_and_memory_are_told():
    def share(one):
        is_engine = not hasattr(one, "load")
        return one.model_copy(update={"gpu_memory_utilization": 0.46}) if is_engine else one

    lines = printed(MadeUp().report(share, load_average=3.1, cores=2))
    assert "load average 3.10 on 2 cores before the first engine" in lines
    assert "gpu_memory_utilization 0.46, chosen by what was free" in lines


@pytest.mark.parametrize(
    ("given", "others", "is_said"),
    [
        ({"load_average": 3.1, "cores": 2}, 0.0, True),
        ({"load_average": 0.1, "cores": 2}, 1.3, True),
        ({"load_average": 0.9, "cores": 2}, 0.4, False),
        ({}, None, False),
    ],
    ids=["before", "meanwhile", "little", "unknown"],
)
def test_other_work_is_told(given, others, is_said):
    lines = printed(MadeUp(other_cores=others).report(**given))
    assert any(line.startswith("Other work ran on this machine (load") for line in lines) == is_said


def test_columns_of_what_was_not_measured_are_left_out():
    header = section(printed(MadeUp(kinds=("ours",)).report()), "concurrency 1")[0]
    assert "none" not in header
    assert "stock" not in header


@pytest.mark.parametrize("width", [40, 80, 200])
def test_fits_and_loses_no_column(width):
    made = MadeUp(drafts=(LONG,), ks=(16,), first={LONG: 0.9}, concurrency=(1, 64), jitter=0.02)
    lines = printed(made.report(), width)
    tables = [n for n, line in enumerate(lines) if line.startswith("variant")]
    assert len(tables) == 3
    for start in tables:
        end = next(n for n in range(start, len(lines)) if not lines[n])
        assert max(len(line) for line in lines[start:end]) <= TABLE_WIDTH
        assert not any("…" in line for line in lines[start:end])


def test_acceptance_of_several_k():
    header, _, three, _, five, *_ = section(
        printed(MadeUp(ks=(3, 5), drafts=(FAST, SLOW)).report()), "acceptance length, and per position"
    )
    assert header[-5:] == ["1", "2", "3", "4", "5"]
    assert three == ["ours", "fast-draft", "3", "2.95", "0.80", "0.64", "0.51"]
    assert five == ["ours", "fast-draft", "5", "3.69", "0.80", "0.64", "0.51", "0.41", "0.33"]


class TestNotes:
    def test_stock_failed(self):
        lines = printed(MadeUp(stock_error=STOCK_ERROR, concurrency=(1, 4), ks=(3, 5)).report())
        (line,) = [line for line in lines if "served" in line]
        assert line == (
            "not served: stock fast-draft K=3, stock fast-draft K=5: "
            "ValueError: stock cannot read five aux layers"
        )
        assert not any(line.startswith("interrupted") for line in lines)

    def test_parts_that_could_not_be_measured(self):
        text = "RuntimeError: rpc failed\nsee its log:\nmore"
        lines = printed(MadeUp(probe_error=text, concurrency=(1, 4)).report())
        (line,) = [line for line in lines if "could not be measured" in line]
        assert line == (
            "parts of a step could not be measured for none, stock fast-draft K=3, ours fast-draft K=3: "
            "RuntimeError: rpc failed"
        )
        assert not any("not served" in line for line in lines)

    def test_interrupted(self):
        made = MadeUp()
        lines = printed(
            made.report(
                lambda one: None if hasattr(one, "load") and one.repeat and one.variant == OURS else one
            )
        )
        (line,) = [line for line in lines if line.startswith("interrupted")]
        assert line == "interrupted, with fewer than 3 measurements: ours fast-draft K=3."
        assert not any(line.startswith("interrupted") for line in printed(made.report()))

    @pytest.mark.parametrize(
        ("repeats", "text"),
        [(1, "without an interval"), (3, "in 75% of cases"), (7, "98% interval")],
    )
    def test_what_an_interval_is(self, repeats, text):
        (line,) = [
            line for line in printed(MadeUp(repeats=repeats).report()) if "x none, x stock" in line
        ]
        assert text in line

    def test_rounds_of_one_engine(self):
        assert any(
            "shows in --repeats" in line for line in printed(MadeUp(repeats=1, rounds=6).report())
        )
        assert not any("shows in --repeats" in line for line in printed(MadeUp().report()))

    def test_premises(self):
        report = MadeUp(synthetic=[2.5], temperature=0.7).report()
        lines = list(premises(report.settings, report.context))
        assert lines[0] == "org/target-8B with org/fast-draft on a device"
        assert any("temperature 0.7, seed 0" in line for line in lines)
        assert any(line.startswith("Synthetic acceptance [2.5]") for line in lines)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        pytest.param(STOCK_ERROR, "ValueError: stock cannot read five aux layers", id="root cause"),
        pytest.param("exit status -6\nsee its log:\nb\n", "exit status -6", id="a log without an error"),
        pytest.param("exit status 1\nsee its log:\nOSError: b\n", "OSError: b", id="the log's error"),
        pytest.param("ValueError: a\nsee its log:\nOSError: b\n", "ValueError: a", id="its own error"),
        pytest.param(
            "ValidationError: 1 validation error for ModelConfig\n  Value error, no such dtype [type=x]",
            "Value error, no such dtype [type=x]",
            id="pydantic's",
        ),
        pytest.param("exit status 1", "exit status 1", id="one line"),
        pytest.param("", "no message", id="nothing"),
        pytest.param(
            "RuntimeError: Engine core initialization failed. See root cause above.",
            "RuntimeError: Engine core initialization failed. See root cause above.",
            id="nothing better",
        ),
    ],
)
def test_reason(error, line):
    assert reason(error) == line


def test_a_long_reason_is_cut():
    assert len(reason("ValueError: " + "x" * 1000)) < 220
