# SPDX-License-Identifier: Apache-2.0
"""Writes, prints and draws a tune's report."""

from __future__ import annotations

from rich.console import Console

from vllm_eagle_ext.measure.extra import INSTALL, is_installed
from vllm_eagle_ext.measure.tune.report import TuneReport
from vllm_eagle_ext.measure.tune.results import TuneFolder
from vllm_eagle_ext.measure.tune.table import print_tune

REPORT, PICTURE = "report.json", "tune.png"


def publish(report: TuneReport, folder: TuneFolder, console: Console) -> None:
    """Write report.json and the picture into the folder, and print tables and config."""
    (folder.path / REPORT).write_text(report.model_dump_json(indent=1) + "\n")
    print_tune(report, console)
    drawn = f"no picture: matplotlib is missing, {INSTALL}"
    if is_installed("matplotlib"):
        from vllm_eagle_ext.measure.tune.picture import draw_tune

        drawn = draw_tune(report, folder.path / PICTURE).name
    console.print(f"{folder.path}: {REPORT}, {drawn}", markup=False)
