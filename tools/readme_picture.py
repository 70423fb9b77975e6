"""The picture of docs/hybrid.md: what one state block per draft token costs, and what replay does.

    python -m tools.readme_picture      writes docs/images/state_per_request.png

The figures are those of `vllm-eagle plan`, computed from the target's published sizes. They are kept in
the file, as its description: a picture of the same figures stays as it is, whatever draws it.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.support.published import materialise, published
from tests.unit.memory.configs import GIB_27B
from vllm_eagle_ext.cli.plan_output import to_json
from vllm_eagle_ext.plan.run import PlanRequest, run_plans

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/images/state_per_request.png"
CONFIG, DRAFT = ROOT / "tests/fixtures/hybrid/qwen3_6_27b.json", "z-lab/Qwen3.6-27B-DFlash"
RELEASE, PLATFORM = "0.33", "cuda:h100"  # as the page's table
TARGET, KS, LENGTH = "Qwen3.6-27B", (3, 7, 15), 32768
# Okabe and Ito, told apart by colour-blind eyes; the hatch tells them apart in print.
SCHEMES: dict[str, dict[str, Any]] = {
    "per_token": {
        "label": "one state block per draft token", "color": "#D55E00", "hatch": "//", "edgecolor": "w",
    },
    "replay": {"label": "replay", "color": "#0072B2"},
}  # fmt: skip
STYLE: dict[str, Any] = {
    "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 11, "font.size": 10,
    "legend.frameon": False,
}  # fmt: skip
WIDTH = 0.38


def figures() -> dict[str, dict[str, list[float]]]:
    """Scheme -> GiB of recurrent state per request, and requests that fit, for each K."""
    pair = next(draft for draft in published() if draft.checkpoint == DRAFT)
    with tempfile.TemporaryDirectory() as folder:
        target, draft = Path(folder, "target.json"), Path(folder, "draft")
        target.write_text(json.dumps(json.loads(CONFIG.read_text())["config"]))
        draft.mkdir()
        request = PlanRequest(
            target=str(target), draft=str(materialise(pair, draft)), max_model_len=LENGTH,
            vllm=RELEASE, platform=PLATFORM, weights_gib=GIB_27B,
        )  # fmt: skip
        plans = json.loads(to_json(run_plans(request, KS)))["plans"]
    return {
        scheme: {
            "gib": [round(plan[scheme]["state_bytes"] / 2**30, 2) for plan in plans],
            "fit": [plan[scheme]["requests_that_fit"] for plan in plans],
        }
        for scheme in SCHEMES
    }


def draw(series: dict[str, dict[str, list[float]]], path: Path) -> None:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8.6, 3.7), layout="constrained", dpi=130)
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        _bars(left, {scheme: both["gib"] for scheme, both in series.items()}, "%.2f")
        _bars(right, {scheme: both["fit"] for scheme, both in series.items()}, "%d")
        left.set_title("Recurrent state per request, GiB")
        right.set_title(f"Requests of {LENGTH:,} tokens that fit")
        title = f"{TARGET} with DFlash on one H100, computed by vllm-eagle plan"
        figure.suptitle(title, fontsize=12)
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(SCHEMES))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Software": None, "Description": json.dumps(series)})


def _bars(panel: Any, series: dict[str, list[float]], written: str) -> None:
    for number, (scheme, values) in enumerate(series.items()):
        places = [place + (number - 0.5) * WIDTH for place in range(len(KS))]
        bars = panel.bar(places, values, 0.94 * WIDTH, linewidth=0, **SCHEMES[scheme])
        panel.bar_label(bars, fmt=written, padding=2)
    panel.set_xticks(range(len(KS)), [f"K = {k}" for k in KS])
    panel.set_xlabel("draft tokens per step")
    panel.tick_params(axis="x", length=0)
    panel.margins(y=0.12)


def main() -> None:
    from PIL import Image

    series = figures()
    with Image.open(PICTURE) as drawn:
        is_fresh = json.loads(drawn.info["Description"]) == series
    if not is_fresh:
        draw(series, PICTURE)
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
