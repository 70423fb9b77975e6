# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle plan` as typed: what speculation will cost a target in memory, before serving it."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vllm_eagle_ext.cli import parameters
from vllm_eagle_ext.cli.terminal import MOST, console, fail, numbers
from vllm_eagle_ext.errors import EagleExtError

if TYPE_CHECKING:
    from vllm_eagle_ext.draft.attention import WindowOption


def _count(*names: str, least: int = 1, about: str) -> Any:
    return typer.Option(*names, min=least, max=MOST, help=about)


def _finite(value: float | None) -> float | None:
    """Refuse NaN, which passes every bound or none, and what no machine has."""
    if value is not None and not abs(value) < MOST:
        raise typer.BadParameter(f"{value} is no size")
    return value


_Caching = Annotated[
    bool | None,
    typer.Option(
        "--prefix-caching/--no-prefix-caching",
        help="Plan with or without prefix caching. Default: on, except for hybrid targets on a CPU.",
    ),
]
_Memory = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        callback=_finite,
        help="Plan for this many GiB of one GPU, or of one CPU node. Default: as this machine has.",
    ),
]
_Drafted = Annotated[
    str,
    typer.Option(
        "-k", "--num-speculative-tokens", help="Draft this many tokens per step: 15, or 3,7,15."
    ),
]
_Window = Annotated[
    str | None,
    typer.Option(help='Plan for this draft_window of eagle_ext: a number of tokens, or "auto".'),
]
_Vocabulary = Annotated[
    str | None, typer.Option(help="Plan for this draft_vocabulary of eagle_ext: a file of token ids.")
]
_Release = Annotated[
    str | None,
    typer.Option(
        help="Plan for this vLLM release, such as 0.33. Default: the installed one, else 0.33."
    ),
]
_Device = Annotated[
    str | None,
    typer.Option(
        help="Plan for sm_80, sm_90, sm_100 or sm_120. Default: this GPU; sm_90 with --gpu-mem."
    ),
]
_Prefill = Annotated[
    str,
    typer.Option(
        help="Plan for this --gdn-prefill-backend of vllm serve: auto, triton, flashinfer, cutedsl."
    ),
]
_Block = Annotated[
    int | None,
    _count(
        about="Round attention blocks to multiples of this many tokens. Default: 16; 128 on a CPU and "
        "on sm_100 with a DFlash draft.",
    ),
]
_StateBlock = Annotated[
    int | None,
    _count("--mamba-block-size", least=8, about="Say what vLLM makes of its option of this name."),
]
_Share = Annotated[
    float,
    typer.Option(
        min=0.01, max=1, callback=_finite, help="Use this share of the memory, as vllm serve does."
    ),
]
_Target = Annotated[
    str | None,
    typer.Option(
        help="Name the config.json, folder or hub repository of the target. Default: the one that a "
        "draft in the speculators format names."
    ),
]
_Draft = Annotated[
    str | None,
    typer.Argument(help="Count the memory of this draft too: a folder or hub repository."),
]
# The name of the argument before it was one.
_DraftOption = Annotated[str | None, typer.Option("--draft", hidden=True)]
_Ranks = Annotated[int, _count("--tp", about="Plan for this tensor parallel size.")]
_Length = Annotated[
    int | None,
    _count(about="Plan for requests of this many tokens. Default: the target's limit."),
]
_Requests = Annotated[int, _count(about="Run at most this many requests at a time, as vllm serve does.")]
_KvDtype = Annotated[str, typer.Option(help="Plan for this --kv-cache-dtype of vllm serve.")]
_Weights = Annotated[
    float | None,
    typer.Option(
        min=0, callback=_finite, help="Assume this size of the whole target. Default: as its files are."
    ),
]
_Reserve = Annotated[
    float,
    typer.Option(min=0, callback=_finite, help="Keep this many GiB for activations and graphs."),
]
_ByVllm = Annotated[
    bool, typer.Option("--by-vllm", help="Let vLLM plan any kind of target, in 15 CPU s.")
]
_Cpu = Annotated[bool, typer.Option("--cpu", help="Plan for vLLM's CPU backend.")]


def plan(
    context: typer.Context,
    k: _Drafted,
    draft: _Draft = None,
    target: _Target = None,
    draft_option: _DraftOption = None,
    gpu_mem: _Memory = None,
    tp: _Ranks = 1,
    max_model_len: _Length = None,
    max_num_seqs: _Requests = 1024,
    gpu_memory_utilization: _Share = 0.92,
    prefix_caching: _Caching = None,
    kv_dtype: _KvDtype = "auto",
    draft_window: _Window = None,
    draft_vocabulary: _Vocabulary = None,
    weights_gib: _Weights = None,
    reserve_gib: _Reserve = 2.0,
    download_dir: parameters.DownloadDir = None,
    target_revision: parameters.TargetRevision = None,
    vllm: _Release = None,
    device: _Device = None,
    gdn_prefill: _Prefill = "auto",
    attention_block: _Block = None,
    mamba_block_size: _StateBlock = None,
    cpu: _Cpu = False,
    by_vllm: _ByVllm = False,
    as_json: parameters.AsJson = False,
) -> None:
    """Show the GPU memory that drafting needs, and what fits.

    For a hybrid target it compares a recurrent state per draft token with replay. It loads no model.

    Exits with 0 if a request fits for every K, and with 1 if for some K none does. Exits with 2 if the
    target or the draft cannot be read.
    """
    if draft and draft_option:
        raise typer.BadParameter("give one draft, as DRAFT; --draft is its former name")
    if not (target or draft or draft_option):
        raise typer.BadParameter("name the target, or a draft that names it", param_hint="--target")
    from vllm_eagle_ext.cli.plan_output import print_by_vllm, print_plans, to_json
    from vllm_eagle_ext.plan.request import PlanRequest
    from vllm_eagle_ext.plan.run import run_plans

    # The options become a request by their names.
    given = {field.name: context.params[field.name] for field in fields(PlanRequest)}
    given |= {"target": target or None, "draft": draft or draft_option}
    given["draft_window"] = _read_draft_window(draft_window)
    ks = list(dict.fromkeys(numbers(k, "-k")))
    # Plan each K, print, and end as the worst plan does.
    try:
        if by_vllm:
            raise typer.Exit(print_by_vllm(PlanRequest(**given), ks, as_json=as_json))
        plans = run_plans(PlanRequest(**given), ks)
    except EagleExtError as error:
        fail(str(error), as_json=as_json)
    if as_json:
        typer.echo(to_json(plans))
    else:
        print_plans(plans, console())
    raise typer.Exit(max(planned.exit_code for planned in plans))


def _read_draft_window(text: str | None) -> WindowOption:
    if text is None:
        return None
    if text == "auto":
        return "auto"
    if not text.isdecimal() or len(text) > 9 or int(text) < 2:
        raise typer.BadParameter("a whole number above 1, or auto", param_hint="--draft-window")
    return int(text)
