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
from vllm_eagle_ext.memory.footprint import (
    GIB,
    MIB,
    Footprint,
    beyond_graphs,
    mib,
    requests_fit,
    savings_line,
)
from vllm_eagle_ext.memory.state_blocks import counted
from vllm_eagle_ext.plan.run import Plan, PlanRequest


def print_plans(plans: Sequence[Plan], console: Console) -> None:
    """Print the plans of one target, one for each K."""
    first = plans[0]
    for text in _premises(first):
        console.print(text, markup=False)
    console.print()
    console.print(_one(first) if len(plans) == 1 else _several(plans))
    for text in _sentences(plans):
        console.print(text, markup=False)


def _sentences(plans: Sequence[Plan]) -> Iterator[str]:
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


def _premises(plan: Plan) -> Iterator[str]:
    """Say what the plan is for, and where each part is from."""
    request, memory, draft, device = plan.request, plan.memory, plan.draft, plan.device
    # Target and draft.
    states, full = plan.target.recurrent.layers, plan.target.attention.layers
    yield f"{request.target}: {states} gated delta nets, {full} full-attention layers"
    yield f"weights  {plan.weights.size / GIB:.1f} GiB, {plan.weights.origin}"
    if draft:
        layers = sum(layer.layers for layer in draft.layers)
        noun = "layer" if layers == 1 else "layers"
        yield f"draft    {draft.size / GIB:.2f} GiB, {layers} attention {noun}"
        if draft.head_read:
            yield f"         its head reads {draft.head_read}"
    # What is left for the cache, on which device.
    ranks = f" on each of {request.tp} ranks" if request.tp > 1 else ""
    origin = f" ({memory.origin})" if memory.origin else ""
    yield (
        f"KV cache {plan.budget / GIB:.1f} GiB{ranks}: {request.gpu_memory_utilization:g} of "
        f"{memory.gib:.4g} GiB{origin}, less weights, {mib(plan.tables)} MiB of rope tables and "
        f"{request.reserve_gib:g} GiB assumed for the rest"
    )
    on = device.name if device.on_cpu else f"{device.name} ({plan.device_from})"
    prefill = f"; GDN prefill: {plan.prefill}" if plan.prefill else ""
    block = ", a state block more with prefix caching" * plan.setting.prefill_exports
    yield (
        f"vLLM     {device.release} ({plan.release_from}) on {on}{prefill}{block}; attention blocks: "
        f"multiples of {plan.setting.block_alignment} tokens"
    )


def _one(plan: Plan) -> Table:
    """Make a column for each scheme."""
    budget, length, most = plan.budget, plan.setting.max_model_len, plan.request.max_num_seqs
    rank = " and rank" if plan.request.tp > 1 else ""
    table = Table(box=None, pad_edge=False)
    table.add_column(f"per request{rank}, with hybrid_state", style="dim")
    for scheme in plan.footprints:
        table.add_column(scheme, justify="right")
    rows: list[tuple[str, Callable[[Footprint], str]]] = [
        ("state blocks in each layer", lambda cost: str(cost.state_blocks)),
        ("one block of a layer, MiB (attention tokens)",
         lambda cost: f"{cost.padded / MIB:.2f} ({cost.tokens})"),
        ("layers of a cache group (padding of all groups)",
         lambda cost: f"{cost.group_layers} ({cost.padding_layers})"),
        ("recurrent state, MiB", lambda cost: mib(cost.state)),
        ("  recorded inputs in it, MiB", lambda cost: mib(cost.recorded_inputs)),
        (f"keys and values of {length} tokens, MiB", lambda cost: mib(cost.attention)),
        (f"requests of {length} tokens that fit", lambda cost: str(cost.fit(budget))),
        ("  as vLLM logs it, Maximum concurrency", lambda cost: f"{cost.concurrency(budget):.2f}"),
        (f"  that run, at --max-num-seqs {most}", lambda cost: str(cost.running(budget, most))),
    ]  # fmt: skip
    if (graphs := plan.graphs) is not None:
        requests = str(graphs.requests)
        rows.append((f"  that a CUDA graph of {graphs.tokens} tokens holds", lambda _: requests))
    rows.append(("recurrent state moved per step, MiB", lambda cost: mib(cost.moved)))
    for name, show in rows:
        table.add_row(name, *(show(cost) for cost in plan.footprints.values()))
    return table


def _several(plans: Sequence[Plan]) -> Table:
    """Make a row for each K, with vLLM's own scheme next to replay."""
    table = Table(box=None, pad_edge=False)
    table.add_column(Text("\nK"), justify="right")
    table.add_column(Text("\nauto takes"), style="dim")
    length, budget = plans[0].setting.max_model_len, plans[0].budget
    for head in ("state, MiB", "that fit", "moved, MiB"):
        table.add_column(Text(f"{head}\nper_token"), justify="right")
        table.add_column(Text("\nreplay"), justify="right")
    for plan in plans:
        both = (plan.per_token, plan.replay)
        table.add_row(
            str(plan.setting.k), plan.auto, *[mib(cost.state) for cost in both],
            *[str(cost.fit(budget)) for cost in both], *[mib(cost.moved) for cost in both],
        )  # fmt: skip
    table.caption = (
        f"state: recurrent state per request; that fit: requests of {length} tokens; moved: recurrent "
        "state that a request reads and writes per step"
    )
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
    """Give one plan's parts; `cuda_graphs` is null on a CPU."""
    head, graphs = plan.draft.head_read if plan.draft else None, plan.graphs
    return {
        "request": asdict(plan.request) | {"k": plan.setting.k, "gpu_mem": plan.memory.gib},
        "max_model_len": plan.setting.max_model_len,
        "weights": {"bytes": plan.weights.size, "origin": plan.weights.origin},
        "draft_weights_bytes": plan.draft.size if plan.draft else None,
        "draft_head_bytes": head.size if head else None,
        "draft_head_share_of_step": head.share if head else None,
        "rope_table_bytes": plan.tables,
        "kv_budget_bytes": plan.budget,
        "assumptions": {
            "vllm": plan.device.release,
            "vllm_from": plan.release_from,
            "device": plan.device.name,
            "device_from": plan.device_from,
            "gdn_prefill": plan.prefill,
            "prefill_exports_states": plan.setting.prefill_exports,
            "attention_block_multiple": plan.setting.block_alignment,
        },
        "cuda_graphs": {
            "largest_tokens": graphs.tokens,
            "largest_requests": graphs.requests,
            "requests_per_step": graphs.running,
            "max_cudagraph_capture_size": None if graphs.enough else graphs.wanted,
        } if graphs else None,
        "hybrid_state": {"auto": plan.auto, "why": plan.why},
        "per_token": _scheme_json(plan, plan.per_token),
        "replay": _scheme_json(plan, plan.replay),
        "line": line(plan),
        "advice": advise(plan),
        "exit_code": plan.exit_code,
    }  # fmt: skip


def _scheme_json(plan: Plan, cost: Footprint) -> dict[str, Any]:
    return {
        "pages_per_request": cost.state_blocks,
        "page_bytes_unpadded": cost.unpadded,
        "page_bytes": cost.padded,
        "attention_block_tokens": cost.tokens,
        "state_bytes": cost.state,
        "records_bytes": cost.recorded_inputs,
        "layers_per_cache_group": cost.group_layers,
        "padding_layers": cost.padding_layers,
        "attention_bytes": cost.attention,
        "blocks_per_request": cost.blocks,
        "pool_blocks": cost.pool(plan.budget),
        "maximum_concurrency": round(cost.concurrency(plan.budget), 2),
        "requests_that_fit": cost.fit(plan.budget),
        "requests_that_run": cost.running(plan.budget, plan.request.max_num_seqs),
        "state_bytes_moved_per_step": cost.moved,
    }


_SHORT = 8192  # tokens; requests are rarely as long as a model's whole context


def line(plan: Plan) -> str:
    """Say the plan in a sentence; for replay it is the one that a start logs."""
    budget, length = plan.budget, plan.setting.max_model_len
    per_token, replay = plan.per_token, plan.replay
    if plan.auto == "replay":
        return savings_line(replay, per_token, budget=budget, length=length)
    fit, other = per_token.fit(budget), replay.fit(budget)
    with_replay = "with replay as well" if fit == other else f"with replay {other or 'none'}"
    return (
        f"Recurrent state: per_token, {counted(per_token.state_blocks)} per request, "
        f"{mib(per_token.state)} MiB: {plan.why}. "
        f"Replay would take {counted(replay.state_blocks)}, {mib(replay.state)} MiB. "
        f"{requests_fit(fit, length).capitalize()}, {with_replay}."
    )


def advise(plan: Plan) -> list[str]:
    return [*_about_fit(plan), *_about_schemes(plan)]


def _about_fit(plan: Plan) -> Iterator[str]:
    fit = plan.taken.fit(plan.budget)
    if not plan.budget:
        yield (
            "Nothing fits: weights and reserve take all the memory. Use a larger --tp, a quantised "
            "checkpoint, or more memory."
        )
    elif not fit:
        longest = plan.longest()
        shorter = f"--max-model-len {longest} or less, " if longest else ""
        yield (
            f"Not one request of {plan.setting.max_model_len} tokens fits, and vLLM would not start: "
            f"use {shorter}--kv-cache-dtype fp8, a larger --tp, or more memory."
        )
    if fit > (most := plan.request.max_num_seqs):
        yield f"{fit} requests fit and {most} run: raise --max-num-seqs for more."


def _about_schemes(plan: Plan) -> Iterator[str]:
    # Which of the two fits.
    budget, setting = plan.budget, plan.setting
    replay, per_token = plan.replay.fit(budget), plan.per_token.fit(budget)
    if replay and not per_token and plan.auto == "replay":
        yield "With one state block per draft token vLLM would not start here; with replay it does."
    elif replay and not per_token:
        yield "With replay a request would fit."
    # What a load of other requests would see.
    if setting.prefix_caching:
        yield (
            f"{counted(plan.taken.state_blocks)} are a worst case: what prefix caching adds is held "
            "only while a text crosses the end of a block."
        )
    if budget and plan.auto == "replay" and setting.max_model_len > _SHORT:
        replay, per_token = (
            plan.footprint(scheme, max_model_len=_SHORT).running(budget, plan.request.max_num_seqs)
            for scheme in ("replay", "per_token")
        )
        if replay:
            yield (
                f"Shorter requests show it more: of {_SHORT} tokens, {replay} run at a time instead of "
                f"{per_token}."
            )
    if plan.graphs is not None and not plan.graphs.enough:
        yield beyond_graphs(plan.graphs)
