# SPDX-License-Identifier: Apache-2.0
"""The model's figures on a terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from benchmarks.kernel_model.results import Data


def kernel_table(data: Data) -> Table:
    """One row per kernel and architecture, of the first shape of each that was modelled."""
    table = Table(
        title="Kernels, compiled; loops: instructions, shuffles, barriers, MMA of one iteration"
    )
    for name in ("kernel", "arch", "state", "K"):
        table.add_column(name)
    numbers = (
        "registers",
        "local B",
        "shared B",
        "warps",
        "CTAs/SM",
        "instr. per warp",
        "alone, clocks",
    )
    for name in (*numbers, "loops"):
        table.add_column(name, justify="right")
    seen = set()
    for row in data["kernels"]:
        key = row["kernel"], row["arch"], row["state"], row["k"]
        if key in seen:
            continue
        seen.add(key)
        table.add_row(*map(str, key), *kernel_cells(row))
    return table


def kernel_cells(row: dict[str, Any]) -> list[str]:
    fits = row["occupancy"]
    return [
        str(row["registers"]), str(row["local"]), str(row["shared"]), str(row["warps"]),
        f"{fits['ctas']} ({fits['limit']})", f"{sum(row['counts'].values()):.0f}", f"{row['alone']:.0f}",
        loops(row),
    ]  # fmt: skip


def loops(row: dict[str, Any]) -> str:
    shown = ("instructions", "shuffle", "barrier", "mma")
    return "; ".join(", ".join(str(loop[name]) for name in shown) for loop in row["loops"]) or "-"


def time_table(data: Data) -> Table:
    table = Table(title="Modelled time per request and layer, us")
    for name in ("device", "target", "TP", "state", "K", "requests", "scheme"):
        table.add_column(name)
    for name in ("us", "of 2R+1W", "of 1R+1W", "kernels"):
        table.add_column(name, justify="right")
    for row in data["times"]:
        least = row["floors"]
        table.add_row(
            *(str(row[name]) for name in ("device", "target", "tp", "state", "k", "requests", "scheme")),
            f"{row['us']:.2f}", f"{row['us'] / least['2R+1W']:.2f}", f"{row['us'] / least['1R+1W']:.2f}",
            parts(row),
        )  # fmt: skip
    return table


def parts(row: dict[str, Any]) -> str:
    """The kernels that take at least a fiftieth, and what binds them."""
    return "; ".join(
        f"{name} {us:.2f} ({binds})"
        for name, (us, binds) in row["kernels"].items()
        if us >= row["us"] / 50
    )
