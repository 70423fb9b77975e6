# SPDX-License-Identifier: Apache-2.0
"""How a plan looks on a terminal, and what it advises."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from vllm_eagle_ext.cli.plan import Plan
from vllm_eagle_ext.cli.plan_files import GIB
from vllm_eagle_ext.hybrid.memory import Footprint, mib

PAYS_FROM = 3  # drafts per step
_SHORT = 8192  # tokens; requests are rarely as long as a model's whole context
_WORTH_IT = 1.25  # times as many requests, for an advice that costs something


def print_plan(plan: Plan, console: Console) -> None:
    for line in _premises(plan):
        console.print(line, markup=False)
    console.print()
    console.print(_table(plan))
    console.print(plan.report.line(), markup=False)
    for text in advise(plan):
        console.print(f"- {text}", markup=False)


def advise(plan: Plan) -> list[str]:
    return [*_about_fit(plan), *_about_length(plan), *_about_options(plan)]


def _premises(plan: Plan) -> Iterator[str]:
    request, target = plan.request, plan.target
    ranks = f" on each of {request.tp} ranks" if request.tp > 1 else ""
    yield (
        f"{request.target}: {target.recurrent.layers} gated delta nets, "
        f"{target.attention.layers} full-attention layers"
    )
    yield f"weights  {plan.weights.size / GIB:.1f} GiB, {plan.weights.origin}"
    if plan.draft:
        layers = sum(layer.layers for layer in plan.draft.layers)
        yield f"draft    {plan.draft.size / GIB:.2f} GiB, {layers} attention layers"
    yield (
        f"KV cache {plan.budget / GIB:.1f} GiB{ranks}: {request.gpu_memory_utilization:g} of "
        f"{request.gpu_mem:g} GiB, less weights and {request.reserve_gib:g} GiB assumed for the rest"
    )


def _table(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("per request" + (" and rank" if plan.request.tp > 1 else ""), style="dim")
    table.add_column("slots", justify="right")
    table.add_column("replay", justify="right")
    length = plan.setting.max_model_len
    rows = [
        ("state pages", lambda f: str(f.pages)),
        ("page of one layer, MiB (attention block, tokens)", _page),
        ("recurrent state, MiB", lambda f: mib(f.state)),
        ("  records in it, MiB", lambda f: mib(f.records)),
        (f"keys and values of {length} tokens, MiB", lambda f: mib(f.attention)),
        (f"requests of {length} tokens that fit", lambda f: str(f.fit(plan.budget))),
        ("  as vLLM logs it, Maximum concurrency", lambda f: f"{f.concurrency(plan.budget):.2f}"),
        (
            f"  that run, at --max-num-seqs {plan.request.max_num_seqs}",
            lambda f: str(f.running(plan.budget, plan.request.max_num_seqs)),
        ),
        ("recurrent state moved per step, MiB", lambda f: mib(f.moved)),
    ]
    for name, show in rows:
        table.add_row(name, show(plan.slots), show(plan.replay))
    return table


def _page(cost: Footprint) -> str:
    return f"{cost.page.padded / 2**20:.2f} ({cost.page.block_tokens})"


def _about_fit(plan: Plan) -> Iterator[str]:
    replay, slots = plan.replay.fit(plan.budget), plan.slots.fit(plan.budget)
    if not plan.budget:
        yield (
            "Nothing fits: weights and reserve take all the memory. Use a larger --tp, a quantised "
            "checkpoint, or more memory."
        )
    elif not replay:
        longest = plan.longest()
        shorter = f"--max-model-len {longest} or less, " if longest else ""
        yield (
            f"Not one request of {plan.setting.max_model_len} tokens fits, and vLLM would not start: "
            f"use {shorter}--kv-dtype fp8, a larger --tp, or more memory."
        )
    elif not slots:
        yield "With slots vLLM would not start here; with replay it does."
    if replay > plan.request.max_num_seqs:
        yield (
            f"{replay} requests fit and {plan.request.max_num_seqs} run: raise --max-num-seqs for more."
        )


def _about_length(plan: Plan) -> Iterator[str]:
    if not plan.budget or plan.setting.max_model_len <= _SHORT:
        return
    short = [plan.footprint(way, max_model_len=_SHORT) for way in ("replay", "slots")]
    replay, slots = (cost.running(plan.budget, plan.request.max_num_seqs) for cost in short)
    if replay:
        yield (
            f"Shorter requests show it more: of {_SHORT} tokens, {replay} run at a time instead of "
            f"{slots}."
        )


def _about_options(plan: Plan) -> Iterator[str]:
    request = plan.request
    if request.k < PAYS_FROM:
        yield (
            f"K = {request.k} is small: replay saves memory, but time only from K >= {PAYS_FROM}; "
            "below, its commit costs about what it saves."
        )
    if request.cpu and request.prefix_caching:
        yield "On a CPU vLLM's V1 runner cannot do prefix caching here: use --no-prefix-caching."
    elif request.prefix_caching and plan.budget:
        without = plan.footprint("replay", prefix_caching=False)
        fit, now = without.fit(plan.budget), plan.replay.fit(plan.budget)
        if fit >= _WORTH_IT * now and fit:
            yield (
                f"Without prefix caching a request takes {_pages(without)} instead of "
                f"{plan.replay.pages}: {fit} requests would fit instead of {now}."
            )


def _pages(cost: Footprint) -> str:
    return "1 page" if cost.pages == 1 else f"{cost.pages} pages"
