"""What `python -m benchmarks.guard` lets pass."""

from __future__ import annotations

import json

import pytest

from benchmarks import guard
from benchmarks.guard import GUARDS, judge


def report(**medians: float | None):
    rows = [
        {
            "variant": {"kind": "ours", "draft": "d", "k": 4},
            "concurrency": int(level[1:]),
            "against_stock": None if median is None else {"median": median},
        }
        for level, median in medians.items()
    ]
    stock = {"variant": {"kind": "stock", "draft": "d", "k": 4}, "concurrency": 1, "against_stock": None}
    return {"rows": [stock, *rows]}


@pytest.mark.parametrize(
    ("medians", "held"),
    [
        ({"c1": 1.0, "c8": 0.94}, [True, True]),
        ({"c1": 1.0, "c8": 0.92}, [True, False]),
        ({"c1": None}, [False]),
        ({}, [False]),
    ],
)
def test_a_ratio_below_its_margin_fails(medians, held):
    dense = GUARDS[0]
    assert [holds for _, holds in judge(dense, report(**medians))] == held


def test_the_line_says_figure_and_margin():
    line, _ = judge(GUARDS[0], report(c8=0.5))[0]
    assert "concurrency 8: 0.500, at least 0.93" in line


class TestBenchesThatFail:
    @pytest.fixture
    def main(self, monkeypatch, tmp_path, capsys):
        """Runs all guards, their benches answered by `run`; the lines told, and the exit status."""

        def all_of(run) -> tuple[list[str], int]:
            monkeypatch.setattr(guard, "BUILD", tmp_path)
            monkeypatch.setattr(guard.performance, "run", run)
            with pytest.raises(SystemExit) as end:
                guard.main()
            return capsys.readouterr().out.splitlines(), end.value.code

        return all_of

    @staticmethod
    def good(_, out) -> int:
        out.mkdir()
        (out / "report.json").write_text(json.dumps(report(c1=1.0)))
        return 0

    def test_none(self, main):
        lines, status = main(self.good)
        assert [line[:3] for line in lines] == ["ok "] * len(GUARDS)
        assert status == 0

    @pytest.mark.parametrize(("status", "writes"), [(1, True), (1, False), (0, False)])
    def test_one_is_not_served_and_the_others_run(self, main, status, writes):
        def run(bench, out) -> int:
            if out.name != "per_token":
                return self.good(bench, out)
            if writes:
                self.good(bench, out)
            return status

        lines, ended = main(run)
        assert lines[1] == f"NO  {GUARDS[1].what}: not served"
        assert [line[:3] for line in (lines[0], lines[2])] == ["ok ", "ok "]
        assert ended == 1
