# SPDX-License-Identifier: Apache-2.0
"""How the verdict on a gate's layout looks on a terminal."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table

from vllm_eagle_ext.cli.verify.gate_layouts import LayoutVerdict
from vllm_eagle_ext.options import KEY


def print_verdict(verdict: LayoutVerdict, console: Console) -> None:
    table = Table("gate_layout", "drafts", "acceptance per position", "tau")
    for row in verdict.measured:
        rates = " ".join(f"{rate:.2f}" for rate in row.rates)
        table.add_row(row.layout, str(row.drafts), rates, f"{row.tau:.2f}")
    console.print(table)
    if verdict.winner is None:
        console.print("Too close to tell: a larger --num-prompts or a larger --max-tokens.")
        return
    option = json.dumps({KEY: {**verdict.options, "gate_layout": verdict.winner}})
    if verdict.is_low:
        console.print("Both are low: something else is wrong as well, see `vllm-eagle check`.")
    console.print(f"{verdict.winner}. Serve it with --additional-config '{option}'", markup=False)
