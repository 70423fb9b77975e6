# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle plan` as typed."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated

import typer

from vllm_eagle_ext.cli import parameters
from vllm_eagle_ext.cli.terminal import MOST, console, fail, json_object, numbers
from vllm_eagle_ext.errors import EagleExtError


def _finite(value: float | None) -> float | None:
    """Refuse NaN, which passes every bound or none, and what no machine has."""
    if value is not None and not abs(value) < MOST:
        raise typer.BadParameter(f"{value} is no size")
    return value


_Caching = Annotated[
    bool | None,
    typer.Option(
        "--prefix-caching/--no-prefix-caching",
        help="Plan with prefix caching. Default: except for hybrid targets on a CPU.",
    ),
]
_Memory = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        callback=_finite,
        help="Plan for so many GiB of one GPU or CPU node. Default: this machine's, or the platform's.",
    ),
]
_Drafted = Annotated[
    str,
    typer.Option(
        "-k", "--num-speculative-tokens", help="Draft this many tokens per step: 15, or 3,7,15."
    ),
]
_Release = Annotated[
    str | None,
    typer.Option(help="Plan for this vLLM release. Default: the installed one, else 0.33."),
]
_Prefill = Annotated[
    str,
    typer.Option(help="Plan for this --gdn-prefill-backend: auto, triton, flashinfer, cutedsl."),
]
_Share = Annotated[
    float,
    typer.Option(min=0.01, max=1, callback=_finite, help="Use this share of the memory."),
]
_Draft = Annotated[
    str | None,
    typer.Argument(help="Count this draft too: a folder or hub repository."),
]
_Requests = Annotated[int, typer.Option(min=1, max=MOST, help="Run at most this many requests.")]
_KvCacheDtype = Annotated[str, typer.Option(help="Plan for this --kv-cache-dtype.")]
_Weights = Annotated[
    float | None,
    typer.Option(min=0, callback=_finite, help="Assume this size of the target. Default: its files'."),
]
_Reserve = Annotated[
    float,
    typer.Option(min=0, callback=_finite, help="Keep this many GiB for activations and graphs."),
]
_ByVllm = Annotated[
    bool, typer.Option("--by-vllm", help="Let vLLM plan a hybrid target too, as with --eagle-ext.")
]


def plan(
    context: typer.Context,
    k: _Drafted,
    draft: _Draft = None,
    target: parameters.Target = None,
    gpu_mem: _Memory = None,
    tp: parameters.Ranks = 1,
    max_model_len: parameters.Length = None,
    max_num_seqs: _Requests = 1024,
    gpu_memory_utilization: _Share = 0.92,
    prefix_caching: _Caching = None,
    kv_cache_dtype: _KvCacheDtype = "auto",
    eagle_ext: parameters.EagleExt = "{}",
    weights_gib: _Weights = None,
    reserve_gib: _Reserve = 2.0,
    download_dir: parameters.DownloadDir = None,
    revision: parameters.Revision = None,
    target_revision: parameters.TargetRevision = None,
    vllm: _Release = None,
    platform: parameters.Platform = "auto",
    gdn_prefill: _Prefill = "auto",
    by_vllm: _ByVllm = False,
    as_json: parameters.AsJson = False,
) -> None:
    """Show the GPU memory that drafting needs, and what fits.

    It compares a recurrent state per draft token with replay, and loads no model. A target without
    recurrent states is planned by the installed vLLM, with its draft.

    Exits with 0 if a request fits for every K, with 1 if for some K none does, and with 2 if a file
    cannot be read.
    """
    if not (target or draft):
        raise typer.BadParameter("name the target, or a draft that names it", param_hint="--target")
    from vllm_eagle_ext.cli.plan_output import print_by_vllm, print_plans, to_json
    from vllm_eagle_ext.plan.run import PlanRequest, has_states, run_plans

    # The options become a request by their names.
    given = {field.name: context.params[field.name] for field in fields(PlanRequest)}
    given |= {"target": target or None, "draft": draft or None}
    given["eagle_ext"] = json_object(eagle_ext, "--eagle-ext")
    request, ks = PlanRequest(**given), list(dict.fromkeys(numbers(k, "-k")))
    # Plan each K, print, and end as the worst plan does.
    try:
        if by_vllm or request.eagle_ext or not has_states(request):
            raise typer.Exit(print_by_vllm(request, ks, as_json=as_json))
        plans = run_plans(request, ks)
    except EagleExtError as error:
        fail(str(error), as_json=as_json)
    if as_json:
        typer.echo(to_json(plans))
    else:
        print_plans(plans, console())
    raise typer.Exit(max(planned.exit_code for planned in plans))
