# SPDX-License-Identifier: Apache-2.0
"""Commands of `vllm-eagle`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vllm_eagle_ext.cli.bench.command import app as bench
from vllm_eagle_ext.cli.check.command import check
from vllm_eagle_ext.cli.shared import console, fail
from vllm_eagle_ext.cli.verify.command import verify
from vllm_eagle_ext.errors import EagleExtError

if TYPE_CHECKING:
    from vllm_eagle_ext.cli.plan import Plan

app = typer.Typer(no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False)
app.add_typer(bench, name="bench")
app.command()(check)
app.command()(verify)


@app.callback()
def main() -> None:
    """Tools around vllm-eagle-ext."""


@app.command()
def status() -> None:
    """Say whether vLLM will load the package here; exits with 1 if it will not."""
    from vllm_eagle_ext.cli.status import read_status

    report, shown = read_status(), console()
    for line in report.lines:
        shown.print(f"{'ok ' if line.ok else 'NO '} {line.text}", markup=False)
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def plan(
    target: Annotated[str, typer.Option(help="config.json, folder or hub repository of the target.")],
    k: Annotated[int, typer.Option("-k", "--num-speculative-tokens", min=1)],
    gpu_mem: Annotated[float, typer.Option(min=0.001, help="GiB of one GPU, or of the CPU's node.")],
    tp: Annotated[int, typer.Option("--tp", min=1, help="Tensor parallel size.")] = 1,
    max_model_len: Annotated[int | None, typer.Option(min=1, help="Else the target's own.")] = None,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="As for vllm serve.")] = 1024,
    gpu_memory_utilization: Annotated[float, typer.Option(min=0.01, max=1)] = 0.92,
    prefix_caching: Annotated[bool, typer.Option("--prefix-caching/--no-prefix-caching")] = True,
    kv_dtype: Annotated[str, typer.Option(help="As --kv-cache-dtype.")] = "auto",
    draft: Annotated[str | None, typer.Option(help="Folder or hub repository of the draft.")] = None,
    weights_gib: Annotated[float | None, typer.Option(min=0, help="Of the whole target.")] = None,
    reserve_gib: Annotated[float, typer.Option(min=0, help="Activations, graphs: assumed.")] = 2.0,
    download_dir: Annotated[str | None, typer.Option(help="Where vLLM keeps hub files.")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Served by vLLM's CPU backend.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say what speculation costs a hybrid target in memory, with a state per token and with replay.

    Loads no model. Exits with 0 if a request fits with replay, with 1 if none does, with 2 if the
    target or the draft cannot be read.
    """
    from vllm_eagle_ext.cli import plan as planning

    try:
        planned = planning.run_plan(planning.PlanRequest(
            target=target, k=k, gpu_mem=gpu_mem, tp=tp, max_model_len=max_model_len,
            max_num_seqs=max_num_seqs, gpu_memory_utilization=gpu_memory_utilization,
            prefix_caching=prefix_caching, kv_dtype=kv_dtype, draft=draft, weights_gib=weights_gib,
            reserve_gib=reserve_gib, cpu=cpu, download_dir=download_dir,
        ))  # fmt: skip
    except EagleExtError as error:
        fail(str(error), as_json=as_json)
    _show_plan(planned, as_json=as_json)
    raise typer.Exit(planned.exit_code)


def _show_plan(planned: Plan, *, as_json: bool) -> None:
    from vllm_eagle_ext.cli.plan import to_json
    from vllm_eagle_ext.cli.plan_table import advise, print_plan

    if as_json:
        typer.echo(to_json(planned, advise(planned)))
    else:
        print_plan(planned, console())
