# SPDX-License-Identifier: Apache-2.0
"""Plans on a terminal, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vllm_eagle_ext.cli.terminal import json_text
from vllm_eagle_ext.memory.cuda_graphs import FullGraphs
from vllm_eagle_ext.memory.footprint import Footprint
from vllm_eagle_ext.memory.savings import MIB, mib
from vllm_eagle_ext.plan.advice import advise, line
from vllm_eagle_ext.plan.dense import KvCost
from vllm_eagle_ext.plan.device import GIB
from vllm_eagle_ext.plan.draft import Draft
from vllm_eagle_ext.plan.request import PlanRequest
from vllm_eagle_ext.plan.run import DensePlan, HybridPlan, Plan, PlanInputs


def print_plans(plans: Sequence[Plan], console: Console) -> None:
    """Print the plans of one target, one for each K."""
    first = plans[0]
    for text in _premise_lines(first):
        console.print(text, markup=False)
    console.print()
    hybrid = [plan for plan in plans if isinstance(plan, HybridPlan)]
    if isinstance(first, DensePlan):
        console.print(_dense(first))
        plans = [first]  # K changes nothing of it
    else:
        console.print(_one(first) if len(hybrid) == 1 else _several(hybrid))
    for text in _said(plans):
        console.print(text, markup=False)


def _said(plans: Sequence[Plan]) -> Iterator[str]:
    """Yield the sentence of each plan, and what is advised; once, where it is the same for all."""
    if len(plans) == 1:
        yield line(plans[0])
        yield from (f"- {text}" for text in advise(plans[0]))
        return
    advice = [advise(plan) for plan in plans]
    everywhere = [text for text in advice[0] if all(text in other for other in advice)]
    for plan, texts in zip(plans, advice, strict=True):
        yield f"K = {plan.setting.k}. {line(plan)}"
        yield from (f"- {text}" for text in texts if text not in everywhere)
    yield from (f"- {text}" for text in everywhere)


def _premise_lines(plan: Plan) -> Iterator[str]:
    premises = plan.premises
    request, memory = premises.request, premises.memory
    yield f"{request.target}: {_layers_line(plan)}"
    yield f"weights  {premises.weights.size / GIB:.1f} GiB, {premises.weights.origin}"
    if premises.draft:
        yield _draft_line(premises.draft, asked=request.draft_window is not None)
        if premises.draft.head_read:
            yield f"         its head reads {premises.draft.head_read}"
    ranks = f" on each of {request.tp} ranks" if request.tp > 1 else ""
    origin = f" ({memory.origin})" if memory.origin else ""
    yield (
        f"KV cache {premises.budget / GIB:.1f} GiB{ranks}: {request.gpu_memory_utilization:g} of "
        f"{memory.gib:.4g} GiB{origin}, less weights, {mib(premises.tables)} MiB of rope tables and "
        f"{request.reserve_gib:g} GiB assumed for the rest"
    )
    multiple = plan.setting.block_alignment
    yield f"vLLM     {premises.assumptions}; attention blocks: multiples of {multiple} tokens"


def _draft_line(draft: Draft, *, asked: bool) -> str:
    layers = sum(layer.layers for layer in draft.layers)
    noun = "layer" if layers == 1 else "layers"
    said = f"draft    {draft.size / GIB:.2f} GiB, {layers} attention {noun}"
    if not asked:
        return said
    if draft.window is None:
        return f"{said}; attends as it was published"
    kept = "; keeps all, in the group of the target's layers" if draft.keeps_all else ", which it keeps"
    return f"{said}; attends to the last {draft.window} tokens{kept}"


def _layers_line(plan: Plan) -> str:
    if isinstance(plan, HybridPlan):
        recurrent, full = plan.target.recurrent.layers, plan.target.attention.layers
        return f"{recurrent} gated delta nets, {full} full-attention layers"
    kinds = {a.window: a.layers for a in plan.target.attention}
    named = [
        f"{count} layers of full attention" if window is None else f"{count} with a window of {window}"
        for window, count in kinds.items()
    ]
    return ", ".join(named)


def _one(plan: HybridPlan) -> Table:
    table = _plan_table(plan.premises, ", with hybrid_state")
    table.add_column("per_token", justify="right")
    table.add_column("replay", justify="right")
    rows: list[tuple[str, Callable[[Any], str]]] = [
        ("state blocks in each layer", lambda f: str(f.state_blocks)),
        (
            "one block of a layer, MiB (attention tokens)",
            lambda f: f"{f.layer_block.padded / MIB:.2f} ({f.layer_block.tokens})",
        ),
        (
            "layers of a cache group (padding of all groups)",
            lambda f: f"{f.group_layers} ({f.padding_layers})",
        ),
        ("recurrent state, MiB", lambda f: mib(f.state)),
        ("  recorded inputs in it, MiB", lambda f: mib(f.recorded_inputs)),
        *_request_rows(plan),
        ("recurrent state moved per step, MiB", lambda f: mib(f.moved)),
    ]
    if (graphs := plan.graphs) is not None:
        shown = str(graphs.requests)
        rows.insert(-1, (f"  that a CUDA graph of {graphs.tokens} tokens holds", lambda _: shown))
    for name, show in rows:
        table.add_row(name, show(plan.per_token), show(plan.replay))
    return table


def _several(plans: Sequence[HybridPlan]) -> Table:
    """Make a row for each K, with vLLM's own scheme next to replay."""
    table = Table(box=None, pad_edge=False)
    table.add_column(Text("\nK"), justify="right")
    table.add_column(Text("\nauto takes"), style="dim")
    length, budget = plans[0].setting.max_model_len, plans[0].premises.budget
    for head in ("state, MiB", "that fit", "moved, MiB"):
        table.add_column(Text(f"{head}\nper_token"), justify="right")
        table.add_column(Text("\nreplay"), justify="right")
    for plan in plans:
        both = (plan.per_token, plan.replay)
        table.add_row(
            str(plan.setting.k), plan.auto, *[mib(f.state) for f in both],
            *[str(f.fit(budget)) for f in both], *[mib(f.moved) for f in both],
        )  # fmt: skip
    table.caption = (
        f"state: recurrent state per request; that fit: requests of {length} tokens; moved: recurrent "
        "state that a request reads and writes per step"
    )
    return table


def _dense(plan: DensePlan) -> Table:
    table = _plan_table(plan.premises)
    table.add_column("", justify="right")
    table.add_row("keys and values of one token, KiB", f"{plan.cost.token / 1024:.4g}")
    for name, show in _request_rows(plan):
        table.add_row(name, show(plan.cost))
    return table


def _request_rows(plan: Plan) -> list[tuple[str, Callable[[Any], str]]]:
    """Name the rows about requests, each with how it is read from a cost."""
    length, budget = plan.setting.max_model_len, plan.premises.budget
    most = plan.premises.request.max_num_seqs
    return [
        (f"keys and values of {length} tokens, MiB", lambda cost: mib(cost.attention)),
        (f"requests of {length} tokens that fit", lambda cost: str(cost.fit(budget))),
        ("  as vLLM logs it, Maximum concurrency", lambda cost: f"{cost.concurrency(budget):.2f}"),
        (f"  that run, at --max-num-seqs {most}", lambda cost: str(cost.running(budget, most))),
    ]


def _plan_table(premises: PlanInputs, more: str = "") -> Table:
    table = Table(box=None, pad_edge=False)
    rank = " and rank" if premises.request.tp > 1 else ""
    table.add_column(f"per request{rank}{more}", style="dim")
    return table


def print_by_vllm(request: PlanRequest, ks: Sequence[int], *, as_json: bool) -> int:
    """Let vLLM plan each K, print what it says, and return the exit code."""
    from vllm_eagle_ext.plan.by_vllm import lines, plan_by_vllm

    plans = [plan_by_vllm(request, k) for k in ks]
    code = 0 if all(plan["requests"] >= 1 for plan in plans) else 1
    text = "\n".join(line for plan in plans for line in lines(plan))
    typer.echo(json_text({"by_vllm": plans}, code) if as_json else text)
    return code


def to_json(plans: Sequence[Plan]) -> str:
    """Write sizes in bytes, of one rank and one request unless the name says otherwise.

    A page is vLLM's: one layer's part of a KV-cache block, which holds a state in recurrent layers;
    records are the recorded inputs.
    """
    code = max(plan.exit_code for plan in plans)
    return json_text({"plans": [_plan_json(plan) for plan in plans]}, code)


def _plan_json(plan: Plan) -> dict[str, Any]:
    """Give one plan's parts.

    `per_token`, `replay` and `hybrid_state` are null for a target without recurrent state, `kv` for one
    with it, `cuda_graphs` on a CPU.
    """
    premises, hybrid = plan.premises, plan if isinstance(plan, HybridPlan) else None
    head = premises.draft.head_read if premises.draft else None
    request = asdict(premises.request) | {"k": plan.setting.k, "gpu_mem": premises.memory.gib}
    return {
        "request": request,
        "max_model_len": plan.setting.max_model_len,
        "weights": {"bytes": premises.weights.size, "origin": premises.weights.origin},
        "draft_weights_bytes": premises.draft.size if premises.draft else None,
        "draft_head_bytes": head.size if head else None,
        "draft_head_share_of_step": head.share if head else None,
        "rope_table_bytes": premises.tables,
        "kv_budget_bytes": premises.budget,
        "assumptions": _assumptions(plan),
        "cuda_graphs": _graphs(plan.graphs) if plan.graphs else None,
        "hybrid_state": {"auto": hybrid.auto, "why": hybrid.why} if hybrid else None,
        "per_token": _recurrent_json(hybrid, hybrid.per_token) if hybrid else None,
        "replay": _recurrent_json(hybrid, hybrid.replay) if hybrid else None,
        "kv": None if isinstance(plan, HybridPlan) else _kv(plan, plan.cost),
        "line": line(plan),
        "advice": advise(plan),
        "exit_code": plan.exit_code,
    }


def _recurrent_json(plan: HybridPlan, cost: Footprint) -> dict[str, Any]:
    return {
        "pages_per_request": cost.state_blocks,
        "page_bytes_unpadded": cost.layer_block.raw,
        "page_bytes": cost.layer_block.padded,
        "attention_block_tokens": cost.layer_block.tokens,
        "state_bytes": cost.state,
        "records_bytes": cost.recorded_inputs,
        "layers_per_cache_group": cost.group_layers,
        "padding_layers": cost.padding_layers,
        **_kv(plan, cost),
        "state_bytes_moved_per_step": cost.moved,
    }


def _kv(plan: Plan, cost: Footprint | KvCost) -> dict[str, Any]:
    budget = plan.premises.budget
    return {
        "attention_bytes": cost.attention,
        "blocks_per_request": cost.blocks,
        "pool_blocks": cost.pool(budget),
        "maximum_concurrency": round(cost.concurrency(budget), 2),
        "requests_that_fit": cost.fit(budget),
        "requests_that_run": cost.running(budget, plan.premises.request.max_num_seqs),
    }


def _assumptions(plan: Plan) -> dict[str, Any]:
    assumed = plan.premises.assumptions
    return {
        "vllm": assumed.serves.release,
        "vllm_from": assumed.release_from,
        "device": assumed.device,
        "device_from": assumed.device_from,
        "gdn_prefill": assumed.prefill,
        "prefill_exports_states": assumed.prefill_exports,
        "attention_block_multiple": plan.setting.block_alignment,
    }


def _graphs(graphs: FullGraphs) -> dict[str, Any]:
    return {
        "largest_tokens": graphs.tokens,
        "largest_requests": graphs.requests,
        "requests_per_step": graphs.running,
        "max_cudagraph_capture_size": None if graphs.enough else graphs.wanted,
    }
