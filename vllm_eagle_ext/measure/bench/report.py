# SPDX-License-Identifier: Apache-2.0
"""All that a bench shows, from what lies in its folder."""

from __future__ import annotations

from rich.console import Console

from vllm_eagle_ext.measure.bench.advice import bench_advice
from vllm_eagle_ext.measure.bench.results import Folder
from vllm_eagle_ext.measure.bench.rows import BenchReport
from vllm_eagle_ext.measure.bench.summary import summarise
from vllm_eagle_ext.measure.bench.table import print_bench
from vllm_eagle_ext.measure.extra import INSTALL, is_installed

REPORT = "report.json"


def write_report(folder: Folder, console: Console) -> BenchReport:
    """Writes report.json and the plots into the folder, and prints tables and advice.

    Raises:
        SpeculativeConfigError: no bench is here.
    """
    report = summarise(folder.settings(), folder.context(), folder.engines(), folder.measurements())
    report = report.model_copy(update={"advice": bench_advice(report)})
    (folder.path / REPORT).write_text(report.model_dump_json(indent=1) + "\n")
    print_bench(report, console)
    _draw(report, folder, console)
    return report


def _draw(report: BenchReport, folder: Folder, console: Console) -> None:
    if not is_installed("matplotlib"):
        drawn = f"no plots: matplotlib is missing, {INSTALL}"
    else:
        from vllm_eagle_ext.measure.bench.plots import draw

        drawn = ", ".join(path.name for path in draw(report, folder.path)) or "no plots"
    console.print(f"{folder.path}: {REPORT}, {drawn}", markup=False)
