# SPDX-License-Identifier: Apache-2.0
"""Compiles, models, prints and writes, in a process with a Triton that compiles."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import ExitStack
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from benchmarks.kernel_model.case import ALL_RANKS_ON, Case, Target, cases
from benchmarks.kernel_model.compiling import Launch, Machine, compile_launch, machine_code
from benchmarks.kernel_model.facts import ANY_ROWS, FUSED, facts_of
from benchmarks.kernel_model.fused import MOST_ROWS, FusedKernels, library
from benchmarks.kernel_model.launches import launches, schemes
from benchmarks.kernel_model.machine import DEVICES, Arch, Device
from benchmarks.kernel_model.plugin_table import write_module
from benchmarks.kernel_model.profile import Profile
from benchmarks.kernel_model.results import REQUESTS, RESULTS, Results, read_results
from benchmarks.kernel_model.table import kernel_table, time_table
from benchmarks.kernel_model.times import scheme_time

PER_TOKEN, PER_TOKEN_FUSED = "per_token", "per_token, fused"


@lru_cache(maxsize=8)  # devices of one architecture
def profiles(
    scheme: str, case: Case, arch: Arch, requests: int, fused: FusedKernels | None
) -> dict[str, Profile]:
    """Of each kernel of a scheme; of vLLM's fused one, none without its library."""
    made: dict[str, tuple[Machine, int]] = {}
    if scheme != PER_TOKEN_FUSED:
        for name, launch in _launches(scheme, case, requests).items():
            compiled = _compiled_case(scheme, name, case)
            made[name] = _compiled(scheme, name, compiled, requests, arch.capability), launch.ctas
    elif fused:
        made[FUSED] = fused.machine_code(case, arch.capability), requests * case.value_heads
    known = {name: facts_of(scheme, name) for name in made}
    return {
        name: Profile.of(machine, ctas, arch, known[name].trips(case), known[name].conditional)
        for name, (machine, ctas) in made.items()
    }


def _compiled_case(scheme: str, name: str, case: Case) -> Case:
    rows = case.rows if facts_of(scheme, name).rows_in_code else ANY_ROWS
    return Case(case.key_heads, case.value_heads, case.state, rows)


@lru_cache(maxsize=16)
def _launches(scheme: str, case: Case, requests: int) -> dict[str, Launch]:
    return {launch.name: launch for launch in launches(scheme, case, requests)}


@cache
def _compiled(scheme: str, name: str, case: Case, requests: int, capability: int) -> Machine:
    return machine_code(compile_launch(_launches(scheme, case, requests)[name], capability))


def model(wanted: Iterable[tuple[Target, int, Case, Device]], found: Results) -> None:
    """Adds every scheme's kernels and times for these shapes and devices to `found`."""
    for target, parallel, case, device in track(list(wanted), "compiling", console=Console(stderr=True)):
        for scheme in [*schemes(), PER_TOKEN, PER_TOKEN_FUSED]:
            if scheme == PER_TOKEN_FUSED and case.rows > MOST_ROWS:
                continue
            for requests in REQUESTS:
                made = profiles(scheme, case, device.arch, requests, found.fused)
                made = made or found.kept(case, device.arch, requests)
                for name, profile in made.items():
                    found.add_kernel(scheme, name, case, device.arch, requests, profile)
                if made:
                    times = scheme_time(scheme, made, case, target, device, requests)
                    found.add_time(scheme, target, parallel, case, device, requests, times)


def main(
    target: Annotated[str, typer.Option(help="Part of a target's name; default: all.")] = "",
    tp: Annotated[list[int] | None, typer.Option(help="Ranks; default: 1, 2, 4, 8.")] = None,
    state: Annotated[str, typer.Option(help="fp32 or bf16; default: both.")] = "",
    k: Annotated[list[int] | None, typer.Option(help="Draft tokens: 3, 7, 15; default: all.")] = None,
    device: Annotated[str, typer.Option(help="Part of a device's name; default: all.")] = "",
    every_rank: Annotated[
        bool, typer.Option(help=f"TP 2, 4, 8 on all GPUs, not on sm_{ALL_RANKS_ON} alone.")
    ] = False,
    wheel: Annotated[
        Path | None, typer.Option(help="vLLM's CUDA wheel or its library: vLLM's fused kernel is in it.")
    ] = None,
    write: Annotated[
        bool, typer.Option(help="Write JSON, page and the plugin's table; of a part, its rows.")
    ] = False,
) -> None:
    """Model the time of verify and commit on GPUs from the kernels' machine code."""
    devices = [item for item in DEVICES if device.lower() in item.name.lower()]
    wanted = [
        (whose, ranks, case, where)
        for whose, ranks, case in cases()
        for where in devices
        if (every_rank or ranks == 1 or where.capability == ALL_RANKS_ON)
        and target.lower() in whose.name.lower()
        and (not tp or ranks in tp)
        and state in case.state
        and (not k or case.rows - 1 in k)
    ]
    everything = not (target or tp or state or k or device)
    if not wanted:
        raise typer.BadParameter("no such target, rank, state, K or device")
    with ExitStack() as stack:
        fused = FusedKernels(stack.enter_context(library(wheel))) if wheel else None
        before = read_results() if RESULTS.exists() else None
        found = Results(fused, before, everything=everything)
        model(wanted, found)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(kernel_table(found.data))
    console.print(time_table(found.data))
    if write:
        found.write()
        write_module(found.data)
        console.print(f"wrote {RESULTS}")


if __name__ == "__main__":
    typer.run(main)
