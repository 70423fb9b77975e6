# SPDX-License-Identifier: Apache-2.0
"""The model's figures on a terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from benchmarks.kernel_model.results import Data


def kernel_table(data: Data) -> Table:
    """One row per kernel, architecture and type of state: the first shape's figures."""
    table = Table(title="Kernels; loops: instructions, shuffles, barriers, MMA of an iteration")
    for name in ("kernel", "arch", "state", "K"):
        table.add_column(name)
    numbers = (
        "registers",
        "local B",
        "shared B",
        "warps",
        "CTAs/SM",
        "instr. per warp",
        "one warp, clocks",
    )
    for name in (*numbers, "loops"):
        table.add_column(name, justify="right")
    for row in data["kernels"]:
        key = row["kernel"], row["arch"], row["state"], row["k"]
        table.add_row(*map(str, key), *kernel_cells(row))
    return table


def kernel_cells(row: dict[str, Any]) -> list[str]:
    fits = row["occupancy"]
    return [
        str(row["registers"]), str(row["local"]), str(row["shared"]), str(row["warps"]),
        f"{fits['ctas']} ({fits['limit']})", f"{sum(row['counts'].values()):.0f}",
        f"{row['one_warp']:.0f}", loops(row),
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
        for scheme, by_requests in row["schemes"].items():
            for requests, found in by_requests.items():
                table.add_row(
                    *(str(row[name]) for name in ("device", "target", "tp", "state", "k")),
                    requests, scheme, f"{found['us']:.2f}", f"{found['us'] / least['2R+1W']:.2f}",
                    f"{found['us'] / least['1R+1W']:.2f}", parts(found),
                )  # fmt: skip
    return table


def parts(found: dict[str, Any]) -> str:
    """The kernels and what binds them."""
    return "; ".join(f"{name} {us:.2f} ({binds})" for name, (us, binds) in found["kernels"].items())
