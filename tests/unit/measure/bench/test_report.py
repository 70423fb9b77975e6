from __future__ import annotations

import io
import json
import sys

import pytest
from rich.console import Console

from tests.unit.measure.bench.made_up import MadeUp
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.measure.bench.report import write_report
from vllm_eagle_ext.measure.bench.results import MEASUREMENTS, Folder


def written(folder) -> str:
    output = io.StringIO()
    write_report(folder, Console(file=output, soft_wrap=True, highlight=False, emoji=False))
    return output.getvalue()


def test_all_of_it_from_the_folder_alone(tmp_path):
    pytest.importorskip("matplotlib", reason="comes with the extra `measure`")
    MadeUp(concurrency=(1, 4)).folder(tmp_path)
    shown = written(Folder(tmp_path))
    assert "concurrency 4" in shown
    assert shown.splitlines()[-1].endswith("report.json, speedup.png, acceptance.png, steps.png")
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["advice"]
    assert all(f"- {line}" in shown for line in found["advice"])
    assert len(found["rows"]) == 6


def test_a_bench_that_was_killed_while_writing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # not of interest
    MadeUp().folder(tmp_path)
    path = tmp_path / MEASUREMENTS
    path.write_text(path.read_text()[:-20])
    assert "interrupted" in written(Folder(tmp_path))


def test_without_matplotlib(tmp_path, monkeypatch):
    MadeUp().folder(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    shown = written(Folder(tmp_path))
    assert "pip install '.[measure]'" in shown.splitlines()[-1]
    assert "best K" in shown or "gives" in shown
    assert (tmp_path / "report.json").exists()
    assert not list(tmp_path.glob("*.png"))


def test_no_bench_is_here(tmp_path):
    with pytest.raises(SpeculativeConfigError, match=r"bench\.json"):
        written(Folder(tmp_path))
