# SPDX-License-Identifier: Apache-2.0
"""Compiles, models, prints and writes, in a process with a Triton that compiles."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from benchmarks.kernel_model.case import TARGETS, Case, Target, cases, share
from benchmarks.kernel_model.compiling import Launch, Machine, compile_launch, machine_code
from benchmarks.kernel_model.facts import ANY_ROWS, FUSED, facts_of
from benchmarks.kernel_model.fused import MOST_ROWS, FusedKernels, library
from benchmarks.kernel_model.launches import launches, schemes
from benchmarks.kernel_model.machine import DEVICES, Arch, Device
from benchmarks.kernel_model.profile import Profile
from benchmarks.kernel_model.results import REQUESTS, RESULTS, Results, read_results
from benchmarks.kernel_model.short_table import write_module
from benchmarks.kernel_model.table import kernel_table, time_table
from benchmarks.kernel_model.times import scheme_time

PER_TOKEN, PER_TOKEN_FUSED = "per_token", "per_token, fused"


class Profiles:
    """Profiles of schemes, each compiled once.

    Head counts enter a kernel's code only as constants of addresses, so that the code of the first
    target on one rank stands for all, unless `every_shape` is asked for.
    """

    def __init__(self, fused: FusedKernels | None, *, every_shape: bool) -> None:
        self.fused, self._every_shape = fused, every_shape
        self._made: dict[tuple[object, ...], Profile] = {}

    def of(self, scheme: str, case: Case, arch: Arch, requests: int) -> dict[str, Profile]:
        """Of each kernel of a scheme; of vLLM's fused one, none without its library."""
        if scheme == PER_TOKEN_FUSED:
            return {FUSED: self._fused(case, arch, requests)} if self.fused else {}
        return {
            name: replace(self._profile(scheme, name, case, arch, requests), ctas=launch.ctas)
            for name, launch in _launches(scheme, case, requests).items()
        }

    def _profile(self, scheme: str, name: str, case: Case, arch: Arch, requests: int) -> Profile:
        compiled, launched = self._compiled_as(scheme, name, case, requests)
        key = (scheme, name, compiled, launched, case.rows, arch)
        if key not in self._made:
            machine = _compiled(scheme, name, compiled, launched, arch.capability)
            facts = facts_of(scheme, name)
            self._made[key] = Profile.of(machine, 0, arch, facts.trips(case), facts.conditional)
        return self._made[key]

    def _compiled_as(self, scheme: str, name: str, case: Case, requests: int) -> tuple[Case, int]:
        """The shape that is compiled, and a number of requests for which its tiles are the same."""
        rows = case.rows if facts_of(scheme, name).rows_in_code else ANY_ROWS
        own = replace(case, rows=rows)
        first = share(TARGETS[0], 1, case.state, rows)
        wanted = _tiles(scheme, name, own, requests)
        for number in REQUESTS:
            if not self._every_shape and _tiles(scheme, name, first, number) == wanted:
                return first, number
        return own, requests

    def _fused(self, case: Case, arch: Arch, requests: int) -> Profile:
        assert self.fused
        key = (FUSED, case.state, case.rows, case.value_heads // case.key_heads, arch)
        if key not in self._made:
            machine, facts = self.fused.machine_code(case, arch.capability), facts_of("", FUSED)
            self._made[key] = Profile.of(machine, 0, arch, facts.trips(case), facts.conditional)
        return replace(self._made[key], ctas=requests * case.value_heads)


def _tiles(scheme: str, name: str, case: Case, requests: int) -> float:
    """CTAs of a request's value head; of kernels that count otherwise, no matter what."""
    facts, ctas = facts_of(scheme, name), _launches(scheme, case, requests)[name].ctas
    return ctas / (requests * case.value_heads) if facts.per_head else 0


@lru_cache(maxsize=64)
def _launches(scheme: str, case: Case, requests: int) -> dict[str, Launch]:
    return {launch.name: launch for launch in launches(scheme, case, requests)}


@cache
def _compiled(scheme: str, name: str, case: Case, requests: int, capability: int) -> Machine:
    return machine_code(compile_launch(_launches(scheme, case, requests)[name], capability))


def model(wanted: Iterable[tuple[Target, int, Case, Device]], known: Profiles, found: Results) -> None:
    """Adds every scheme's kernels and times for these shapes and devices to `found`."""
    for target, parallel, case, device in track(list(wanted), "compiling", console=Console(stderr=True)):
        for scheme in [*schemes(), PER_TOKEN, PER_TOKEN_FUSED]:
            if scheme == PER_TOKEN_FUSED and case.rows > MOST_ROWS:
                continue
            for requests in REQUESTS:
                made = known.of(scheme, case, device.arch, requests)
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
    every_shape: Annotated[
        bool, typer.Option(help="Compile for each target's head counts, not only for the first one's.")
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
        if target.lower() in whose.name.lower()
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
        found = Results(before, everything=everything)
        model(wanted, Profiles(fused, every_shape=every_shape), found)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(kernel_table(found.data))
    console.print(time_table(found.data))
    if write:
        found.write()
        write_module(found.data)
        console.print(f"wrote {RESULTS}")


if __name__ == "__main__":
    typer.run(main)
