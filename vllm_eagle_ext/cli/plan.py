# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle plan`: what speculation will cost a hybrid target in memory, before serving it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from vllm_eagle_ext.cli.plan_files import GIB, Draft, Weights, open_model, read_draft, read_weights
from vllm_eagle_ext.errors import OptionsError
from vllm_eagle_ext.hybrid.geometry import Target, read_target
from vllm_eagle_ext.hybrid.memory import Footprint, Setting, StateReport, footprint, report

# Bytes of a key's or value's element; None: as the model's dtype.
KV_DTYPES: dict[str, int | None] = {
    "auto": None, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
}  # fmt: skip
# vLLM's defaults for a server on a GPU of 70 GiB or more; on a CPU 128.
MAX_NUM_SEQS, UTILIZATION = 1024, 0.92
# Activations, CUDA graphs and the runtime: measured by vLLM at start, not known before.
RESERVE_GIB = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    target: str
    k: int
    gpu_mem: float  # GiB of one GPU
    tp: int = 1
    max_model_len: int | None = None  # None: the target's
    max_num_seqs: int = MAX_NUM_SEQS
    gpu_memory_utilization: float = UTILIZATION
    prefix_caching: bool = True
    kv_dtype: str = "auto"
    draft: str | None = None
    weights_gib: float | None = None
    reserve_gib: float = RESERVE_GIB
    cpu: bool = False
    download_dir: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    request: PlanRequest
    target: Target
    setting: Setting
    weights: Weights
    draft: Draft | None
    budget: int  # bytes of one rank's KV cache
    slots: Footprint
    replay: Footprint

    @property
    def exit_code(self) -> int:
        return 0 if self.replay.fit(self.budget) else 1

    @property
    def report(self) -> StateReport:
        return report(
            self.replay, self.slots, budget=self.budget, max_model_len=self.setting.max_model_len
        )

    def footprint(self, way: str, **changes: Any) -> Footprint:
        """Of another setting."""
        layers = self.draft.layers if self.draft else ()
        setting = replace(self.setting, **changes)
        return footprint(self.target, "slots" if way == "slots" else "replay", setting, layers)

    def longest(self) -> int:
        """The largest max_model_len of which one request fits with replay; 0: none."""
        low, high = 0, self.setting.max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            if self.footprint("replay", max_model_len=middle).fit(self.budget):
                low = middle
            else:
                high = middle - 1
        return low


def run_plan(request: PlanRequest) -> Plan:
    """Raises:
    EagleExtError: target, draft or options cannot be read.
    """
    if request.kv_dtype not in KV_DTYPES:
        raise OptionsError(
            field="--kv-dtype", value=request.kv_dtype, allowed=", ".join(KV_DTYPES),
            remedy="choose one of them; others pack keys and values in ways that are not modelled",
        )  # fmt: skip
    kv_bytes = KV_DTYPES[request.kv_dtype]
    model = open_model(request.target, field="--target", download_dir=request.download_dir)
    target = read_target(model.config, tp=request.tp, kv_bytes=kv_bytes, fp32_state=request.cpu)
    weights = read_weights(model, target, request.weights_gib)
    draft = None
    if request.draft is not None:
        draft = read_draft(
            request.draft, tp=request.tp, kv_bytes=target.attention.element_bytes,
            download_dir=request.download_dir,
        )  # fmt: skip
    setting = Setting(
        k=request.k, max_model_len=_max_model_len(request, target),
        prefix_caching=request.prefix_caching, cpu=request.cpu,
    )  # fmt: skip
    layers = draft.layers if draft else ()
    return Plan(
        request=request,
        target=target,
        setting=setting,
        weights=weights,
        draft=draft,
        budget=_budget(request, weights, draft),
        slots=footprint(target, "slots", setting, layers),
        replay=footprint(target, "replay", setting, layers),
    )


def _max_model_len(request: PlanRequest, target: Target) -> int:
    found = request.max_model_len or target.max_position_embeddings
    if found is None:
        raise OptionsError(
            field="--max-model-len", value=None, allowed="a positive integer",
            remedy="state it, as the target's config.json has no max_position_embeddings",
        )  # fmt: skip
    return found


def _budget(request: PlanRequest, weights: Weights, draft: Draft | None) -> int:
    total = request.gpu_mem * request.gpu_memory_utilization * GIB
    loaded = (weights.size + (draft.size if draft else 0)) / request.tp
    return max(0, int(total - loaded - request.reserve_gib * GIB))


def to_json(plan: Plan, advice: list[str]) -> str:
    """Sizes in bytes, of one rank and one request unless the name says otherwise."""
    return json.dumps(
        {
            "request": asdict(plan.request),
            "max_model_len": plan.setting.max_model_len,
            "weights": {"bytes": plan.weights.size, "origin": plan.weights.origin},
            "draft_weights_bytes": plan.draft.size if plan.draft else None,
            "kv_budget_bytes": plan.budget,
            "slots": _json_of(plan, plan.slots),
            "replay": _json_of(plan, plan.replay),
            "line": plan.report.line(),
            "advice": advice,
            "exit_code": plan.exit_code,
        },
        indent=1,
    )


def _json_of(plan: Plan, cost: Footprint) -> dict[str, Any]:
    return {
        "pages_per_request": cost.pages,
        "page_bytes_unpadded": cost.page.raw,
        "page_bytes": cost.page.padded,
        "attention_block_tokens": cost.page.block_tokens,
        "state_bytes": cost.state,
        "records_bytes": cost.records,
        "attention_bytes": cost.attention,
        "blocks_per_request": cost.blocks,
        "pool_blocks": cost.pool(plan.budget),
        "maximum_concurrency": round(cost.concurrency(plan.budget), 2),
        "requests_that_fit": cost.fit(plan.budget),
        "requests_that_run": cost.running(plan.budget, plan.request.max_num_seqs),
        "state_bytes_moved_per_step": cost.moved,
    }
