# SPDX-License-Identifier: Apache-2.0
"""Puts a plan into a sentence, and says what it advises."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_eagle_ext.memory.cuda_graphs import beyond_graphs
from vllm_eagle_ext.memory.footprint import mib, requests_fit, savings_line
from vllm_eagle_ext.memory.state_blocks import counted
from vllm_eagle_ext.memory.state_scheme import LEAST_K
from vllm_eagle_ext.plan.run import Plan

_SHORT = 8192  # tokens; requests are rarely as long as a model's whole context
_WORTH_IT = 1.25  # times as many requests, for an advice that costs something


def line(plan: Plan) -> str:
    """Say the plan in a sentence; for replay it is the one that a start logs."""
    budget, length = plan.budget, plan.setting.max_model_len
    if not plan.is_hybrid:
        return (
            f"Not a hybrid target: no recurrent state to plan. Keys and values: "
            f"{mib(plan.taken.attention)} MiB per request; "
            f"{requests_fit(plan.taken.fit(budget), length)}."
        )
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
    hybrid = [_about_schemes, _about_prefix_caching] if plan.is_hybrid else []
    return [text for about in (_about_fit, *hybrid) for text in about(plan)]


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
            f"use {shorter}--kv-dtype fp8, a larger --tp, or more memory."
        )
    if fit > (most := plan.request.max_num_seqs):
        yield f"{fit} requests fit and {most} run: raise --max-num-seqs for more."


def _about_schemes(plan: Plan) -> Iterator[str]:
    # Which of the two fits, and what K has to do with it.
    budget, setting = plan.budget, plan.setting
    replay, per_token = plan.replay.fit(budget), plan.per_token.fit(budget)
    if replay and not per_token and plan.auto == "replay":
        yield "With one state block per draft token vLLM would not start here; with replay it does."
    elif replay and not per_token:
        yield "With replay a request would fit."
    if setting.k < LEAST_K and plan.auto == "per_token":
        yield (
            f"K = {setting.k} is small: replay saves memory, but time only from K >= {LEAST_K}; "
            "below, its commit costs about what it saves. The option hybrid_state: replay takes it all "
            "the same."
        )
    # What a load of other requests would see.
    if setting.prefix_caching and not plan.crashes:
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


def _about_prefix_caching(plan: Plan) -> Iterator[str]:
    if not plan.setting.prefix_caching:
        return
    size, tokens = plan.request.mamba_block_size, plan.taken.tokens
    if size is not None and size != tokens:
        yield (
            f"vLLM keeps a recurrent state at the end of each attention block, here of {tokens} tokens, "
            f"and overwrites --mamba-block-size {size}; a larger --block-size keeps fewer states."
        )
    if plan.crashes:
        yield (
            "With prefix caching vLLM would not start here: on a CPU its V1 runner cannot keep the "
            "recurrent states of drafts with it: use --no-prefix-caching."
        )
    elif plan.budget:
        without = plan.footprint(plan.auto, prefix_caching=False)
        fit, now = without.fit(plan.budget), plan.taken.fit(plan.budget)
        if fit >= _WORTH_IT * now and fit:
            yield (
                f"Without prefix caching a request takes {counted(without.state_blocks)} "
                f"instead of {plan.taken.state_blocks}: {fit} requests would fit instead of {now}."
            )
