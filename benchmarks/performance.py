# SPDX-License-Identifier: Apache-2.0
"""The gated figure of docs/performance.md: `vllm-eagle bench` on a tiny pair, on a CPU.

    python -m benchmarks.performance              measures and draws
    python -m benchmarks.performance --picture    draws the committed results

It is measured anew in build/performance/gated/; report.json goes to benchmarks/results/performance/, the
picture to docs/images/. `benchmarks.guard` runs other pairs with the same settings.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tools.readme_picture import SCHEMES, STYLE

BUILD = Path("build/performance")
RESULTS = Path("benchmarks/results/performance/gated.json")
PICTURE = Path("docs/images/gated_speedup.png")
# Engines in the process of their client, so that two cores do not wait for six processes.
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

SHORT = "examples/tiny/prompts.jsonl"
ENGINE = {
    "max_model_len": 2048,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.3,
    "max_num_seqs": 32,
}
_COMMON = "--together --no-chat-template --ignore-eos --max-tokens 48 --prompts"
DENSE = f"--target examples/tiny/target {_COMMON}"
HYBRID = f"examples/tiny/dflash --target examples/tiny/hybrid_target {_COMMON}"
POSTNORM, GATED = (f"examples/tiny/{name}" for name in ("postnorm", "gated"))

# Colours and hatch of the other picture.
BARS = {"stock": SCHEMES["per_token"], "ours": SCHEMES["replay"]}
# What stock loads by halves.
GATED_BENCH = f"{DENSE} {SHORT} {GATED} -k 4 --concurrency 1 --repeats 1 --rounds 2 --num-prompts 24"


def run(bench: str, out: Path) -> int:
    """Run `vllm-eagle bench` on the tiny pairs with these arguments and the engine's own.

    Returns:
        Its exit status.
    """
    shutil.rmtree(out, ignore_errors=True)
    engine = ENGINE | ({"enable_prefix_caching": False} if "hybrid_target" in bench else {})
    command = [str(Path(sys.executable).parent / "vllm-eagle"), "bench", *bench.split()]
    command += ["--engine", json.dumps(engine), "--result-dir", str(out)]
    return subprocess.run(command, env=os.environ | ENVIRONMENT, check=False).returncode


def draw(report: dict[str, Any]) -> None:
    """Draw a bar for plain vLLM and one for this package; whiskers reach from round to round."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = {"stock": "plain vLLM", "ours": "this package"}
    gains = {row["variant"]["way"]: row["speedup"] for row in report["rows"] if row["speedup"]}
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 3.4), layout="constrained", dpi=130)
        FigureCanvasAgg(figure)
        panel = figure.subplots()
        for place, way in enumerate(names):
            gain = gains[way]
            whiskers = [[gain["median"] - gain["low"]], [gain["high"] - gain["median"]]]
            panel.bar(place, gain["median"], 0.55, yerr=whiskers, capsize=4, **BARS[way])
            panel.text(place + 0.04, gain["median"], f"{gain['median']:.2f}x", va="bottom")
        panel.axhline(1, color="#777777", linewidth=1.2)
        panel.text(-0.47, 1.02, "no draft", color="#555555")
        panel.set_xticks(range(len(names)), list(names.values()))
        panel.set_xlim(-0.5, len(names) - 0.5)
        panel.set_ylabel("tokens/s over those without a draft")
        panel.set_title(f"Tiny gated draft, K = 4, one request\n{report['context']['device']}")
        figure.savefig(PICTURE)


def main() -> None:
    if "--picture" not in sys.argv[1:]:
        out = BUILD / "gated"
        if status := run(GATED_BENCH, out):
            raise SystemExit(status)
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(out / "report.json", RESULTS)
    draw(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()
