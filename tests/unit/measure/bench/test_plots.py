from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.measure.bench.made_up import FAST, SLOW, STOCK_ERROR, MadeUp

pytest.importorskip("matplotlib", reason="comes with the extra `measure`")

from vllm_eagle_ext.measure.bench import plots  # noqa: E402
from vllm_eagle_ext.measure.bench.plot_style import line_style, shifts, some_of  # noqa: E402
from vllm_eagle_ext.measure.bench.results import Variant  # noqa: E402
from vllm_eagle_ext.measure.bench.rows import BenchReport  # noqa: E402
from vllm_eagle_ext.measure.bench.summary import summarise  # noqa: E402

RESULTS = Path(__file__).resolve().parents[4] / "benchmarks/results/performance"
PNG = b"\x89PNG\r\n\x1a\n"
ALWAYS = {"speedup.png", "acceptance.png", "steps.png"}


def drawn(made: MadeUp, folder) -> set[str]:
    paths = plots.draw(made.report(), folder)
    assert {path.name for path in folder.glob("*.png")} == {path.name for path in paths}
    for path in paths:
        assert path.read_bytes().startswith(PNG)
        assert path.stat().st_size > 5000
    return {path.name for path in paths}


@pytest.mark.parametrize(
    ("made", "names"),
    [
        pytest.param(MadeUp(), ALWAYS, id="one of each"),
        pytest.param(MadeUp(repeats=1, stock_error=STOCK_ERROR), ALWAYS, id="one repeat, stock failed"),
        pytest.param(MadeUp(kinds=("stock", "ours")), ALWAYS - {"speedup.png"}, id="without none"),
        pytest.param(MadeUp(kinds=("none",)), {"steps.png"}, id="without a draft"),
        pytest.param(
            MadeUp(ks=(1, 3), drafts=(FAST, SLOW), concurrency=(1, 16), bins=3),
            ALWAYS | {"by_k.png", "context.png"},
            id="all",
        ),
    ],
)
def test_what_is_drawn(made, names, tmp_path):
    assert drawn(made, tmp_path) == names


def test_nothing_to_draw(tmp_path):
    made = MadeUp()
    report = summarise(made.settings(), made.context(), [], [])
    assert plots.draw(report, tmp_path) == []


def test_plots_of_an_earlier_state_are_removed(tmp_path):
    (tmp_path / "by_k.png").write_bytes(PNG)
    assert drawn(MadeUp(kinds=("none",)), tmp_path) == {"steps.png"}


def test_speedup_shows_each_variant_and_its_interval(tmp_path):
    made = MadeUp(ks=(3, 5), concurrency=(1, 4, 16), jitter=0.05)
    report = made.report()
    figure = plots._plot_speedup(report)
    (panel,) = figure.axes
    assert [bar.get_label() for bar in panel.containers] == [
        "stock K=3",
        "ours K=3",
        "stock K=5",
        "ours K=5",
    ]
    line, _, (bars,) = panel.containers[1].lines
    rows = report.of(Variant(kind="ours", draft=FAST, k=3))
    assert list(line.get_ydata()) == [row.speedup.median for row in rows]
    assert bars.get_segments()[2][:, 1] == pytest.approx([rows[2].speedup.low, rows[2].speedup.high])
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["1", "4", "16"]
    assert "target-8B" in figure.get_suptitle()
    assert "concurrency" in panel.get_xlabel()


def test_steps_are_stacked_to_the_measured_step():
    report = MadeUp(kinds=("none", "ours")).report()
    (panel,) = plots._plot_steps(report).axes
    ours = [bar for bar in panel.patches if bar.get_y() > 0.5]
    widths = [bar.get_width() for bar in ours]
    row = report.of(Variant(kind="ours", draft=FAST, k=3))[0]
    assert sum(widths) == pytest.approx(row.step_ms)
    assert widths[:2] == pytest.approx([1000 * row.split.target_s, 1000 * row.split.draft_s])
    assert [label.get_text() for label in panel.get_yticklabels()] == ["no draft", "ours fast-draft K=3"]


def drawn_steps(report) -> list[tuple[float, float]]:
    """Where each bar ends, and the figure beside it."""
    found = []
    for panel in plots._plot_steps(report).axes:
        for text in panel.texts:
            _, place = text.get_position()
            here = [b for b in panel.patches if b.get_y() < place < b.get_y() + b.get_height()]
            found.append((max(b.get_x() + b.get_width() for b in here), float(text.get_text())))
    return found


@pytest.mark.parametrize("rest_s", [0.002, 0.0, -0.004])
def test_a_bar_ends_at_its_figure(rest_s):
    """Also where target and draft took longer, measured apart, than the step as it was timed."""
    report = MadeUp(ks=(3, 16), concurrency=(1, 8), rest_s=rest_s).report()
    bars = drawn_steps(report)
    assert len(bars) == len(report.rows)
    for end, said in bars:
        assert end == pytest.approx(said, rel=0.006)


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.stem)
def test_committed_bars_end_at_their_figures(file):
    for end, said in drawn_steps(BenchReport.model_validate_json(file.read_text())):
        assert end == pytest.approx(said, rel=0.006)


def test_parts_longer_than_their_step_keep_their_proportion():
    row = MadeUp(rest_s=-0.004).report().of(Variant(kind="ours", draft=FAST, k=3))[0]
    parts = plots.step_parts(row)
    assert row.step_ms < 1000 * (row.split.target_s + row.split.draft_s)
    assert set(parts) == {"target", "draft"}
    assert sum(parts.values()) == pytest.approx(row.step_ms)
    assert parts["draft"] / row.step_ms == pytest.approx(row.draft_share)


def test_a_draft_keeps_its_colour():
    report = MadeUp(ks=(3, 5), drafts=(FAST, SLOW)).report()
    styles = {
        (kind, draft): line_style(report, Variant(kind=kind, draft=draft, k=5))
        for kind in ("stock", "ours")
        for draft in (FAST, SLOW)
    }
    assert (
        styles["ours", FAST]["color"] == styles["stock", FAST]["color"] != styles["ours", SLOW]["color"]
    )
    assert styles["ours", FAST]["linestyle"] != styles["stock", FAST]["linestyle"]
    alone = line_style(MadeUp(ks=(3, 5), drafts=(FAST,)).report(), Variant(kind="ours", draft=FAST, k=5))
    assert alone == styles["ours", FAST]


@pytest.mark.parametrize(
    ("levels", "kept"),
    [([1], [1]), ([1, 4], [1, 4]), ([1, 2, 4, 8, 16, 32, 64], [1, 4, 16, 64])],
)
def test_panels_of_many_concurrencies(levels, kept):
    assert some_of(levels) == kept


def test_points_lie_beside_each_other():
    names = [Variant(kind="ours", draft=FAST, k=k) for k in (1, 3, 5)]
    assert list(shifts(names, 0.3).values()) == pytest.approx([-0.1, 0, 0.1])
    assert list(shifts(names[:1], 0.3).values()) == pytest.approx([0])
