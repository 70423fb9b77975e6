from __future__ import annotations

import sys

import pytest
from rich.console import Console

from tests.unit.measure.bench.made_up import FAST, OURS, SLOW, STOCK_ERROR, MadeUp, MadeUpTune, context
from vllm_eagle_ext.measure.bench.results import REPORT
from vllm_eagle_ext.measure.bench.run import publish
from vllm_eagle_ext.measure.bench.summary import summarise

BOTH = ["schedule.png", "speedup.png"]
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def picture():
    pytest.importorskip("matplotlib", reason="comes with the extra `measure`")
    from vllm_eagle_ext.measure.bench import picture

    return picture


@pytest.mark.parametrize(
    ("made", "names"),
    [
        pytest.param(MadeUp(), ["speedup.png"], id="one of each"),
        pytest.param(MadeUp(repeats=1, stock_error=STOCK_ERROR), ["speedup.png"], id="stock failed"),
        pytest.param(MadeUp(kinds=("stock", "ours")), [], id="without none"),
        pytest.param(MadeUp(kinds=("none",)), [], id="without a draft"),
        pytest.param(
            MadeUp(ks=(1, 3), drafts=(FAST, SLOW), concurrency=(1, 16)), ["speedup.png"], id="all"
        ),
        pytest.param(MadeUpTune(), BOTH, id="schedule"),
        pytest.param(MadeUpTune(surface_only=True), ["schedule.png"], id="surface alone"),
    ],
)
def test_what_is_drawn(picture, made, names, tmp_path):
    assert sorted(picture.draw(made.report(), tmp_path)) == names
    assert sorted(file.name for file in tmp_path.iterdir()) == names
    for name in names:
        assert (tmp_path / name).read_bytes().startswith(PNG)
        assert (tmp_path / name).stat().st_size > 5000


def test_nothing_to_draw(picture, tmp_path):
    assert not list(picture.draw(summarise(MadeUp().settings(), context(), [], []), tmp_path))


def test_each_variant_and_its_interval(picture):
    report = MadeUp(ks=(3, 5), concurrency=(1, 4, 16), jitter=0.05).report()
    figure = picture.speedup_plot(report, [row for row in report.rows if row.speedup])
    (panel,) = figure.axes
    shown = [bar.get_label() for bar in panel.containers]
    assert shown == [f"{whose}, K={k}" for k in (3, 5) for whose in ("plain vLLM", "this package")]
    line, _, (bars,) = panel.containers[1].lines
    rows = [row for row in report.rows if row.variant == OURS]
    assert list(line.get_ydata()) == [row.speedup.median for row in rows]
    assert bars.get_segments()[2][:, 1] == pytest.approx([rows[2].speedup.low, rows[2].speedup.high])
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["1", "4", "16"]
    assert figure.get_suptitle().startswith("Speed-up against no draft: target-8B with fast-draft\n")


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    console = Console(record=True, soft_wrap=True, width=80)
    publish(MadeUp().report(), tmp_path, console)
    shown = console.export_text()
    assert "pip install '.[measure]'" in shown.splitlines()[-1]
    assert "at concurrency 1 K=3" in shown
    assert [file.name for file in tmp_path.iterdir()] == [REPORT]
