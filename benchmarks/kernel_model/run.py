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

from benchmarks.kernel_model.case import Case, Target, cases
from benchmarks.kernel_model.compiling import Launch, Machine, compile_launch, machine_code
from benchmarks.kernel_model.facts import ANY_ROWS, FACTS, FUSED, Facts
from benchmarks.kernel_model.fused import MOST_ROWS, FusedKernels, library
from benchmarks.kernel_model.launches import launches, schemes
from benchmarks.kernel_model.machine import DEVICES, Arch, Device
from benchmarks.kernel_model.plugin_table import write_module
from benchmarks.kernel_model.profile import Profile
from benchmarks.kernel_model.results import REQUESTS, RESULTS, Results, read_results
from benchmarks.kernel_model.table import kernel_table, time_table
from benchmarks.kernel_model.times import scheme_time

PER_TOKEN, PER_TOKEN_FUSED = "per_token", "per_token, fused"


def facts_of(name: str) -> Facts:
    if name not in FACTS:
        raise typer.BadParameter(
            f"kernel {name} has no row in benchmarks/kernel_model/facts.py: add one"
        )
    return FACTS[name]


@lru_cache(maxsize=4)  # devices of one architecture
def profiles(scheme: str, case: Case, arch: Arch, fused: FusedKernels | None) -> dict[str, Profile]:
    """Of each kernel of a scheme; of vLLM's fused one, none without its library."""
    if scheme == PER_TOKEN_FUSED:
        made = {FUSED: (fused.machine_code(case, arch.capability), case.value_heads)} if fused else {}
    else:
        made = {
            name: (_compiled(scheme, name, _compiled_case(name, case), arch.capability), ctas)
            for name, ctas in _ctas(scheme, case).items()
        }
    return {
        name: Profile.of(machine, ctas, arch, facts_of(name).trips(case), facts_of(name).conditional)
        for name, (machine, ctas) in made.items()
    }


def _compiled_case(name: str, case: Case) -> Case:
    rows = case.rows if facts_of(name).rows_in_code else ANY_ROWS
    return Case(case.key_heads, case.value_heads, case.state, rows)


@lru_cache(maxsize=8)
def _launches(scheme: str, case: Case) -> dict[str, Launch]:
    return {launch.name: launch for launch in launches(scheme, case)}


def _ctas(scheme: str, case: Case) -> dict[str, int]:
    return {name: launch.ctas for name, launch in _launches(scheme, case).items()}


@cache
def _compiled(scheme: str, name: str, case: Case, capability: int) -> Machine:
    return machine_code(compile_launch(_launches(scheme, case)[name], capability))


def model(wanted: Iterable[tuple[Target, int, Case]], devices: list[Device], found: Results) -> None:
    """Adds every scheme's kernels and times for these shapes to `found`."""
    for target, parallel, case in track(list(wanted), "compiling", console=Console(stderr=True)):
        for device in devices:
            for scheme in [*schemes(), PER_TOKEN, PER_TOKEN_FUSED]:
                if scheme == PER_TOKEN_FUSED and case.rows > MOST_ROWS:
                    continue
                made = profiles(scheme, case, device.arch, found.fused) or found.kept(case, device.arch)
                for name, profile in made.items():
                    found.add_kernel(scheme, name, case, device.arch, profile)
                for requests in REQUESTS if made else ():
                    times = scheme_time(made, case, target, device, requests)
                    found.add_time(scheme, target, parallel, case, device, requests, times)


def main(
    target: Annotated[str, typer.Option(help="Part of a target's name; default: all.")] = "",
    tp: Annotated[list[int] | None, typer.Option(help="Ranks; default: 1, 2, 4, 8.")] = None,
    state: Annotated[str, typer.Option(help="fp32 or bf16; default: both.")] = "",
    k: Annotated[list[int] | None, typer.Option(help="Draft tokens: 3, 7, 15; default: all.")] = None,
    device: Annotated[str, typer.Option(help="Part of a device's name; default: all.")] = "",
    wheel: Annotated[
        Path | None, typer.Option(help="vLLM's CUDA wheel or its library: vLLM's fused kernel is in it.")
    ] = None,
    write: Annotated[bool, typer.Option(help="Write JSON, page and the plugin's table.")] = False,
) -> None:
    """Model the time of verify and commit on GPUs from the kernels' machine code."""
    wanted = [
        (whose, ranks, case)
        for whose, ranks, case in cases()
        if target.lower() in whose.name.lower()
        and (not tp or ranks in tp)
        and state in case.state
        and (not k or case.rows - 1 in k)
    ]
    devices = [item for item in DEVICES if device.lower() in item.name.lower()]
    everything = not (target or tp or state or k or device)
    if write and not everything:
        raise typer.BadParameter("--write needs all shapes and devices: leave the other options out")
    if not wanted or not devices:
        raise typer.BadParameter("no such target, rank, state, K or device")
    with ExitStack() as stack:
        fused = FusedKernels(stack.enter_context(library(wheel))) if wheel else None
        found = Results(fused, read_results() if RESULTS.exists() else None)
        model(wanted, devices, found)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(kernel_table(found.data))
    console.print(time_table(found.data))
    if write:
        found.write()
        write_module(found.data)
        console.print(f"wrote {RESULTS}")


if __name__ == "__main__":
    typer.run(main)
