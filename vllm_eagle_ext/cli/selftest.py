# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle selftest` as typed, and how it looks on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from vllm_eagle_ext.cli import parameters
from vllm_eagle_ext.cli.terminal import console, fail, json_text, require_engine, write_out
from vllm_eagle_ext.errors import EagleExtError

if TYPE_CHECKING:
    from vllm_eagle_ext.measure.selftest.run import SelfTest, Watch


def selftest(
    quick: Annotated[
        bool, typer.Option("--quick", help="Test a few shapes and batch sizes instead of all.")
    ] = False,
    as_json: parameters.AsJson = False,
    out: parameters.JsonFile = None,
) -> None:
    """Compare the kernels of replay with vLLM's own here.

    It needs no model. On a GPU it times both. The JSON holds no host names or paths: send it in.

    Exits with 0 if all results are right, with 1 if one is wrong, and with 2 if nothing was checked.
    """
    require_engine(as_json=as_json)
    from vllm_eagle_ext.measure.outputs import require_writable
    from vllm_eagle_ext.measure.selftest.run import run_selftest

    try:
        if out is not None:
            require_writable(out)
        with watching() as watch:
            result = run_selftest(quick=quick, watch=watch)
    except EagleExtError as error:
        fail(str(error), as_json=as_json)
    text = json_text(result.to_json(), result.exit_code)
    if as_json:
        typer.echo(text)
    else:
        print_selftest(result, console())
    write_out(out, text)
    raise typer.Exit(result.exit_code)


@contextmanager
def watching() -> Iterator[Watch]:
    """Show on standard error what runs."""
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda name, done, total: progress.update(
            task, description=name, completed=done, total=total
        )


def print_selftest(result: SelfTest, console: Console) -> None:
    """Print what was checked, what failed, what was timed and what was left out."""
    device = result.device
    more = f", capability {device['capability']}" if "capability" in device else ""
    console.print(f"{device['name']}{more}", markup=False)
    console.print(_checks(result))
    for checked in result.failed:
        console.print(f"FAILED {checked.case}: {checked.result}", markup=False)
    if result.times:
        console.print(_timed(result.times))
    for text in result.left_out:
        console.print(f"left out: {text}", markup=False)
    count, failed = len(result.checks), len(result.failed)
    verdict = f"All {count} checks passed." if count else "Nothing could be checked."
    if failed:
        verdict = (
            f"{failed} of {count} checks FAILED. Serve with hybrid_state per_token. Please send the "
            "file of --out in."
        )
    console.print(verdict, markup=False)


def _checks(result: SelfTest) -> Table:
    table = Table("kernels", "checks", "passed", "largest error of fp64", box=None, pad_edge=False)
    passed, everything, errors = Counter[str](), Counter[str](), dict[str, float]()
    for checked in result.checks:
        name = checked.result.kernels
        everything[name] += 1
        passed[name] += checked.result.ok
        for part in checked.result.parts:
            if part.limit is not None:
                errors[name] = max(errors.get(name, 0.0), part.error)
    for name, count in everything.items():
        error = f"{errors[name]:.2g}" if name in errors else "all bits"
        table.add_row(name, str(count), str(passed[name]), error if passed[name] == count else "-")
    return table


def _timed(times: list[dict[str, Any]]) -> Table:
    first = times[0]
    table = Table(box=None, pad_edge=False)
    names = ("kernels", "state", "K", "requests", "layers", "replay, ms", "per_token, ms", "ratio")
    for name in (*names, "fused, ms", "ratio"):
        table.add_column(name, justify="left" if name in names[:2] else "right")
    for row in times:
        fused = (f"{row['fused_ms']:.3f}", f"{row['ratio_to_fused']:.2f}") if "fused_ms" in row else "--"
        table.add_row(
            row["kernels"], row["state"], str(row["k"]), str(row["requests"]), str(row["layers"]),
            f"{row['replay_ms']:.3f}", f"{row['per_token_ms']:.3f}", f"{row['ratio']:.2f}", *fused,
        )  # fmt: skip
    table.caption = (
        f"verify and commit of layers of {first['target']}, replayed from a CUDA graph, by the GPU's "
        "clock; fused: vLLM's CUDA kernel of K <= 7, with the gated norm"
    )
    return table
