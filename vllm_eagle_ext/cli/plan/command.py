# SPDX-License-Identifier: Apache-2.0
"""Defines the command `vllm-eagle plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vllm_eagle_ext.cli.terminal import console, fail, numbers
from vllm_eagle_ext.errors import EagleExtError

if TYPE_CHECKING:
    from vllm_eagle_ext.checkpoint.draft_window import WindowOption
    from vllm_eagle_ext.memory.plan.run import Plan


_Caching = Annotated[
    bool | None,
    typer.Option(
        "--prefix-caching/--no-prefix-caching",
        help="As for vllm serve. Default: on, but for hybrid targets on a CPU.",
    ),
]
_Memory = Annotated[
    float | None,
    typer.Option(
        min=0.001, help="GiB of one GPU, or of the CPU's node. Default: read of this machine's."
    ),
]
_Drafted = Annotated[
    str,
    typer.Option("-k", "--num-speculative-tokens", help="Tokens to draft at a time: 15, or 3,7,15."),
]
_Window = Annotated[
    str | None,
    typer.Option(help='Option draft_window of eagle_ext, which the start will have: tokens, or "auto".'),
]
_Release = Annotated[
    str | None,
    typer.Option(help="Release that will serve, such as 0.33. Default: installed, else 0.33."),
]
_Device = Annotated[
    str | None,
    typer.Option(
        help="sm_80, sm_90, sm_100 or sm_120. Default: this machine's GPU; sm_90 with --gpu-mem."
    ),
]
_Prefill = Annotated[
    str, typer.Option(help="As --gdn-prefill-backend of vllm serve: auto, triton, flashinfer, cutedsl.")
]
_Block = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Tokens that an attention block is a multiple of. Default: 16; 128 on a CPU, and on sm_100 "
        "with a DFlash draft.",
    ),
]
_Share = Annotated[float, typer.Option(min=0.01, max=1, help="As for vllm serve.")]


def plan(
    target: Annotated[str, typer.Option(help="config.json, folder or hub repository of the target.")],
    k: _Drafted,
    gpu_mem: _Memory = None,
    tp: Annotated[int, typer.Option("--tp", min=1, help="Tensor parallel size.")] = 1,
    max_model_len: Annotated[int | None, typer.Option(min=1, help="Else the target's own.")] = None,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="As for vllm serve.")] = 1024,
    gpu_memory_utilization: _Share = 0.92,
    prefix_caching: _Caching = None,
    kv_dtype: Annotated[str, typer.Option(help="As --kv-cache-dtype of vllm serve.")] = "auto",
    draft: Annotated[str | None, typer.Option(help="Folder or hub repository of the draft.")] = None,
    draft_window: _Window = None,
    weights_gib: Annotated[float | None, typer.Option(min=0, help="Of the whole target.")] = None,
    reserve_gib: Annotated[float, typer.Option(min=0, help="Activations, graphs: assumed.")] = 2.0,
    download_dir: Annotated[str | None, typer.Option(help="Where vLLM keeps hub files.")] = None,
    vllm: _Release = None,
    device: _Device = None,
    gdn_prefill: _Prefill = "auto",
    attention_block: _Block = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Served by vLLM's CPU backend.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say what speculation costs a target in memory: of a hybrid one, with a recurrent state per draft
    token and with replay.

    Loads no model. Exits with 0 if a request fits, with 1 if for some K none does, with 2 if the target
    or the draft cannot be read.
    """
    from vllm_eagle_ext.memory.plan.request import PlanRequest
    from vllm_eagle_ext.memory.plan.run import run_plans

    try:
        plans = run_plans(PlanRequest(
            target=target, gpu_mem=gpu_mem, tp=tp, max_model_len=max_model_len,
            max_num_seqs=max_num_seqs, gpu_memory_utilization=gpu_memory_utilization,
            prefix_caching=prefix_caching, kv_dtype=kv_dtype, draft=draft, weights_gib=weights_gib,
            reserve_gib=reserve_gib, cpu=cpu, download_dir=download_dir, vllm=vllm, device=device,
            gdn_prefill=gdn_prefill, attention_block=attention_block,
            draft_window=_asked_draft_window(draft_window),
        ), list(dict.fromkeys(numbers(k, "-k"))))  # fmt: skip
    except EagleExtError as error:
        fail(str(error), as_json=as_json)
    _show_plans(plans, as_json=as_json)
    raise typer.Exit(max(planned.exit_code for planned in plans))


def _asked_draft_window(text: str | None) -> WindowOption:
    if text is None:
        return None
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < 2:
        raise typer.BadParameter("a whole number above 1, or auto", param_hint="--draft-window")
    return int(text)


def _show_plans(plans: list[Plan], *, as_json: bool) -> None:
    from vllm_eagle_ext.cli.plan.table import print_plans
    from vllm_eagle_ext.cli.plan.to_json import to_json

    if as_json:
        typer.echo(to_json(plans))
    else:
        print_plans(plans, console())
