# SPDX-License-Identifier: Apache-2.0
"""Prints plans on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vllm_eagle_ext.memory.footprint import Footprint
from vllm_eagle_ext.memory.plan.advice import advise, line
from vllm_eagle_ext.memory.plan.device import GIB
from vllm_eagle_ext.memory.plan.draft import Draft
from vllm_eagle_ext.memory.plan.run import DensePlan, HybridPlan, Plan, Premises
from vllm_eagle_ext.memory.savings import MIB, mib


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
    ranks = f" on each of {request.tp} ranks" if request.tp > 1 else ""
    origin = f" ({memory.origin})" if memory.origin else ""
    yield (
        f"KV cache {premises.budget / GIB:.1f} GiB{ranks}: {request.gpu_memory_utilization:g} of "
        f"{memory.gib:.4g} GiB{origin}, less weights and {request.reserve_gib:g} GiB assumed for the "
        "rest"
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
    length, budget = plan.setting.max_model_len, plan.premises.budget
    most = plan.premises.request.max_num_seqs
    rows = [
        ("state blocks in each layer", lambda f: str(f.state_blocks)),
        ("one block of a layer, MiB (attention tokens)", _layer_block),
        ("recurrent state, MiB", lambda f: mib(f.state)),
        ("  recorded inputs in it, MiB", lambda f: mib(f.recorded_inputs)),
        (f"keys and values of {length} tokens, MiB", lambda f: mib(f.attention)),
        (f"requests of {length} tokens that fit", lambda f: str(f.fit(budget))),
        ("  as vLLM logs it, Maximum concurrency", lambda f: f"{f.concurrency(budget):.2f}"),
        (f"  that run, at --max-num-seqs {most}", lambda f: str(f.running(budget, most))),
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
    length, budget = plan.setting.max_model_len, plan.premises.budget
    most = plan.premises.request.max_num_seqs
    cost = plan.cost
    table.add_row("keys and values of one token, KiB", f"{cost.token / 1024:.4g}")
    table.add_row(f"keys and values of {length} tokens, MiB", mib(cost.attention))
    table.add_row(f"requests of {length} tokens that fit", str(cost.fit(budget)))
    table.add_row("  as vLLM logs it, Maximum concurrency", f"{cost.concurrency(budget):.2f}")
    table.add_row(f"  that run, at --max-num-seqs {most}", str(cost.running(budget, most)))
    return table


def _plan_table(premises: Premises, more: str = "") -> Table:
    table = Table(box=None, pad_edge=False)
    rank = " and rank" if premises.request.tp > 1 else ""
    table.add_column(f"per request{rank}{more}", style="dim")
    return table


def _layer_block(cost: Footprint) -> str:
    return f"{cost.layer_block.padded / MIB:.2f} ({cost.layer_block.tokens})"
