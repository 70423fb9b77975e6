# SPDX-License-Identifier: Apache-2.0
"""Puts a plan into a sentence, and says what it advises."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_eagle_ext.memory.cuda_graphs import beyond_graphs
from vllm_eagle_ext.memory.savings import mib, requests_fit
from vllm_eagle_ext.memory.state_blocks import counted
from vllm_eagle_ext.memory.state_scheme import LEAST_K
from vllm_eagle_ext.plan.run import DensePlan, HybridPlan, Plan

_SHORT = 8192  # tokens; requests are rarely as long as a model's whole context
_WORTH_IT = 1.25  # times as many requests, for an advice that costs something


def line(plan: Plan) -> str:
    """Say the plan in a sentence; for replay it is the one that a start logs."""
    budget, length = plan.premises.budget, plan.setting.max_model_len
    if isinstance(plan, DensePlan):
        return (
            f"Not a hybrid target: no recurrent state to plan. Keys and values: "
            f"{mib(plan.cost.attention)} MiB per request; "
            f"{requests_fit(plan.cost.fit(budget), length)}."
        )
    if plan.auto == "replay":
        return plan.report.line()
    per_token, replay = plan.per_token, plan.replay
    fit, other = per_token.fit(budget), replay.fit(budget)
    with_replay = "with replay as well" if fit == other else f"with replay {other or 'none'}"
    return (
        f"Recurrent state: per_token, {counted(per_token.state_blocks)} per request, "
        f"{mib(per_token.state)} MiB: {plan.why}. "
        f"Replay would take {counted(replay.state_blocks)}, {mib(replay.state)} MiB. "
        f"{requests_fit(fit, length).capitalize()}, {with_replay}."
    )


def advise(plan: Plan) -> list[str]:
    if isinstance(plan, DensePlan):
        return [*_about_fit(plan, plan.cost.fit(plan.premises.budget))]
    taken = plan.taken.fit(plan.premises.budget)
    return [
        *_about_fit(plan, taken), *_about_schemes(plan), *_about_worst_case(plan),
        *_about_length(plan), *_about_graphs(plan), *_about_options(plan),
    ]  # fmt: skip


def _about_fit(plan: Plan, fit: int) -> Iterator[str]:
    if not plan.premises.budget:
        yield (
            "Nothing fits: weights and reserve take all the memory. Use a larger --tp, a quantised "
            "checkpoint, or more memory."
        )
    elif not fit:
        longest = plan.longest()
        shorter = f"--max-model-len {longest} or less, " if longest else ""
        yield (
            f"Not one request of {plan.setting.max_model_len} tokens fits, and vLLM would not start: "
            f"use {shorter}--kv-dtype fp8, a larger --tp, or more memory."
        )
    if fit > (most := plan.premises.request.max_num_seqs):
        yield f"{fit} requests fit and {most} run: raise --max-num-seqs for more."


def _about_schemes(plan: HybridPlan) -> Iterator[str]:
    budget = plan.premises.budget
    replay, per_token = plan.replay.fit(budget), plan.per_token.fit(budget)
    if replay and not per_token and plan.auto == "replay":
        yield "With one state block per draft token vLLM would not start here; with replay it does."
    elif replay and not per_token:
        yield "With replay a request would fit."
    if plan.setting.k < LEAST_K and plan.auto == "per_token":
        yield (
            f"K = {plan.setting.k} is small: replay saves memory, but time only from K >= {LEAST_K}; "
            "below, its commit costs about what it saves. The option hybrid_state: replay takes it all "
            "the same."
        )


def _about_worst_case(plan: HybridPlan) -> Iterator[str]:
    if plan.setting.prefix_caching and not plan.crashes:
        yield (
            f"{counted(plan.taken.state_blocks)} are a worst case: what prefix caching adds is held "
            "only while a text crosses the end of a block."
        )


def _about_length(plan: HybridPlan) -> Iterator[str]:
    budget = plan.premises.budget
    if not budget or plan.auto == "per_token" or plan.setting.max_model_len <= _SHORT:
        return
    most = plan.premises.request.max_num_seqs
    replay, per_token = (
        plan.footprint(scheme, max_model_len=_SHORT).running(budget, most)
        for scheme in ("replay", "per_token")
    )
    if replay:
        yield (
            f"Shorter requests show it more: of {_SHORT} tokens, {replay} run at a time instead of "
            f"{per_token}."
        )


def _about_graphs(plan: HybridPlan) -> Iterator[str]:
    if plan.graphs is not None and not plan.graphs.enough:
        yield beyond_graphs(plan.graphs)


def _about_options(plan: HybridPlan) -> Iterator[str]:
    if not plan.setting.prefix_caching:
        return
    budget = plan.premises.budget
    asked, tokens = plan.premises.request.mamba_block_size, plan.taken.layer_block.tokens
    if asked is not None and asked != tokens:
        yield (
            f"vLLM keeps a recurrent state at the end of each attention block, here of {tokens} tokens, "
            f"and overwrites --mamba-block-size {asked}; a larger --block-size keeps fewer states."
        )
    if plan.crashes:
        yield (
            "With prefix caching vLLM would not start here: on a CPU its V1 runner cannot keep the "
            "recurrent states of drafts with it: use --no-prefix-caching."
        )
    elif budget:
        without = plan.footprint(plan.auto, prefix_caching=False)
        fit, now = without.fit(budget), plan.taken.fit(budget)
        if fit >= _WORTH_IT * now and fit:
            yield (
                f"Without prefix caching a request takes {counted(without.state_blocks)} "
                f"instead of {plan.taken.state_blocks}: {fit} requests would fit instead of {now}."
            )
