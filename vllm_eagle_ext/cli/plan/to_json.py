# SPDX-License-Identifier: Apache-2.0
"""Writes plans as JSON, for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from vllm_eagle_ext.memory.cuda_graphs import FullGraphs
from vllm_eagle_ext.memory.footprint import Footprint
from vllm_eagle_ext.memory.plan.advice import advise, line
from vllm_eagle_ext.memory.plan.dense import KvCost
from vllm_eagle_ext.memory.plan.run import HybridPlan, Plan


def to_json(plans: Sequence[Plan]) -> str:
    """Write sizes in bytes, of one rank and one request unless the name says otherwise.

    Plans of several K stand in a list under `plans`. A page is vLLM's: one layer's part of a KV-cache
    block, which holds a state in recurrent layers; records are the recorded inputs.
    """
    if len(plans) == 1:
        return json.dumps(_plan_json(plans[0]), indent=1)
    code = max(plan.exit_code for plan in plans)
    return json.dumps({"plans": [_plan_json(plan) for plan in plans], "exit_code": code}, indent=1)


def _plan_json(plan: Plan) -> dict[str, Any]:
    """Give one plan's parts.

    `per_token`, `replay` and `hybrid_state` are null for a target without recurrent state, `kv` for one
    with it, `cuda_graphs` on a CPU.
    """
    premises, hybrid = plan.premises, plan if isinstance(plan, HybridPlan) else None
    request = asdict(premises.request) | {"k": plan.setting.k, "gpu_mem": premises.memory.gib}
    return {
        "request": request,
        "max_model_len": plan.setting.max_model_len,
        "weights": {"bytes": premises.weights.size, "origin": premises.weights.origin},
        "draft_weights_bytes": premises.draft.size if premises.draft else None,
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
        "vllm": assumed.deployment.release,
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
