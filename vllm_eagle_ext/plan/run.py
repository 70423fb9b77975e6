# SPDX-License-Identifier: Apache-2.0
"""Computes the plan of a target for each K."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm_eagle_ext.checkpoint.draft_config import published_architecture
from vllm_eagle_ext.checkpoint.target_facts import read_named_target, refuse_a_draft
from vllm_eagle_ext.errors import OptionsError
from vllm_eagle_ext.memory.cuda_graphs import FullGraphs, default_graphs
from vllm_eagle_ext.memory.footprint import CacheSetting, Footprint, footprint
from vllm_eagle_ext.memory.geometry import (
    Attention,
    Recurrent,
    Target,
    read_target,
    rope_table_bytes,
    served_dtype,
)
from vllm_eagle_ext.memory.parameter_count import Estimate, estimate_weights
from vllm_eagle_ext.memory.savings import StateReport, report
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS, Scheme
from vllm_eagle_ext.memory.state_scheme import choose, planned_prefix_caching, runner_obstacles
from vllm_eagle_ext.plan.assumptions import Assumptions, assume
from vllm_eagle_ext.plan.dense import (
    DenseTarget,
    KvCost,
    estimate_dense,
    is_hybrid,
    kv_cost,
    read_dense,
)
from vllm_eagle_ext.plan.device import GIB, Memory, read_memory
from vllm_eagle_ext.plan.draft import Draft, read_draft
from vllm_eagle_ext.plan.model_files import Model, Weights, open_model, read_weights
from vllm_eagle_ext.plan.request import KV_DTYPES, PlanRequest

_STATE_BLOCK_MULTIPLE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """Holds what does not depend on K."""

    request: PlanRequest
    architecture: str  # of the target
    dtype: str  # of the target as it is served
    memory: Memory
    weights: Weights
    draft: Draft | None
    tables: int  # bytes of sines and cosines on each rank
    assumptions: Assumptions
    budget: int  # bytes of one rank's KV cache

    @property
    def draft_layers(self) -> Sequence[Any]:
        return self.draft.layers if self.draft else ()

    def graphs(self, k: int, fit: int) -> FullGraphs | None:
        """Return where full CUDA graphs end, and what the requests that fit would ask; None on a CPU."""
        capability, most = self.assumptions.serves.capability, self.request.max_num_seqs
        if capability is None:
            return None
        return default_graphs(
            k=k, max_num_seqs=most, fit=fit, capability=capability, architecture=self.architecture
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DensePlan:
    premises: PlanInputs
    target: DenseTarget
    setting: CacheSetting
    cost: KvCost

    @property
    def graphs(self) -> FullGraphs | None:
        return self.premises.graphs(self.setting.k, self.cost.fit(self.premises.budget))

    @property
    def exit_code(self) -> int:
        return 0 if self.cost.fit(self.premises.budget) else 1

    def longest(self) -> int:
        """Return the largest max_model_len of which one request fits; 0: none."""
        return _longest(self.setting, self._fits)

    def _fits(self, setting: CacheSetting) -> bool:
        cost = kv_cost(self.target, setting, self.premises.draft_layers)
        return cost.fit(self.premises.budget) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridPlan:
    premises: PlanInputs
    target: Target
    setting: CacheSetting
    per_token: Footprint
    replay: Footprint
    auto: Scheme  # what `hybrid_state: auto` takes
    why: str

    @property
    def taken(self) -> Footprint:
        return self.replay if self.auto == "replay" else self.per_token

    @property
    def graphs(self) -> FullGraphs | None:
        """Return the graphs of the scheme that is taken."""
        return self.premises.graphs(self.setting.k, self.taken.fit(self.premises.budget))

    @property
    def crashes(self) -> bool:
        """Return whether a start crashes.

        vLLM's V1 runner without Triton, as a CPU has it, cannot do prefix caching here.
        """
        return self.setting.cpu and self.setting.prefix_caching

    @property
    def exit_code(self) -> int:
        return 0 if self.taken.fit(self.premises.budget) and not self.crashes else 1

    @property
    def report(self) -> StateReport:
        return report(
            self.replay, self.per_token, budget=self.premises.budget,
            max_model_len=self.setting.max_model_len,
        )  # fmt: skip

    def footprint(self, scheme: Scheme, **changes: Any) -> Footprint:
        """Return the footprint of a scheme with another setting."""
        setting = replace(self.setting, **changes)
        return footprint(self.target, scheme, setting, self.premises.draft_layers)

    def longest(self) -> int:
        """Return the largest max_model_len of which one request fits with what `auto` takes; 0: none."""
        return _longest(self.setting, self._fits)

    def _fits(self, setting: CacheSetting) -> bool:
        cost = self.footprint(self.auto, max_model_len=setting.max_model_len)
        return cost.fit(self.premises.budget) > 0


Plan = DensePlan | HybridPlan


def _longest(setting: CacheSetting, fits: Callable[[CacheSetting], bool]) -> int:
    low, high = 0, setting.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        if fits(replace(setting, max_model_len=middle)):
            low = middle
        else:
            high = middle - 1
    return low


def run_plans(request: PlanRequest, ks: Sequence[int]) -> list[Plan]:
    """Plan the target once for each K.

    Raises:
        EagleExtError: target, draft or options cannot be read.
    """
    if request.kv_dtype not in KV_DTYPES:
        raise OptionsError(
            field="--kv-dtype", value=request.kv_dtype, allowed=", ".join(KV_DTYPES),
            remedy="choose one of them; others pack keys and values in ways that are not modelled",
        )  # fmt: skip
    if request.target is None:
        named = read_named_target(str(request.draft), download_dir=request.download_dir)
        request = replace(request, target=named)
    model = open_model(
        str(request.target),
        field="--target", revision=request.target_revision, download_dir=request.download_dir,
    )  # fmt: skip
    refuse_a_draft(model.config, model.name)
    plans = _hybrid_plans if is_hybrid(model.config) else _dense_plans
    return plans(request, model, ks)


def _hybrid_plans(request: PlanRequest, model: Model, ks: Sequence[int]) -> list[Plan]:
    platform = "cpu" if request.cpu else "cuda"
    architecture = published_architecture(model.config)
    caches = planned_prefix_caching(architecture, platform, request.prefix_caching)
    request = replace(request, prefix_caching=caches)
    _require_state_blocks(request, is_kept=caches is not False)
    hybrid = read_target(
        model.config, tp=request.tp, kv_bytes=KV_DTYPES[request.kv_dtype], fp32_state=request.cpu
    )
    length, width = request.max_model_len or hybrid.max_position_embeddings, hybrid.recurrent.model_bytes
    premises = _premises(
        request, model, lambda: estimate_weights(model.config, model_bytes=width), [hybrid.attention],
        length, ks, hybrid.recurrent,
    )  # fmt: skip
    return [_hybrid(premises, hybrid, setting) for setting in _settings(premises, ks, length)]


def _dense_plans(request: PlanRequest, model: Model, ks: Sequence[int]) -> list[Plan]:
    _require_state_blocks(request, is_kept=False)
    dense = read_dense(model.config, tp=request.tp, kv_bytes=KV_DTYPES[request.kv_dtype])
    length = request.max_model_len or dense.max_position_embeddings
    premises = _premises(
        request, model, lambda: estimate_dense(model.config, dense), dense.attention, length, ks
    )
    layers = premises.draft_layers
    return [
        DensePlan(premises=premises, target=dense, setting=setting, cost=kv_cost(dense, setting, layers))
        for setting in _settings(premises, ks, length)
    ]


def _require_state_blocks(request: PlanRequest, *, is_kept: bool) -> None:
    """Refuse a size of state blocks as vLLM does, and where there are none.

    Args:
        is_kept: the prefix cache keeps recurrent states.

    Raises:
        OptionsError: it keeps none, or no multiple of what the convolution's kernel takes.
    """
    size = request.mamba_block_size
    if size is not None and (not is_kept or size % _STATE_BLOCK_MULTIPLE):
        raise OptionsError(
            field="--mamba-block-size", value=size,
            allowed=f"a multiple of {_STATE_BLOCK_MULTIPLE}, for a hybrid target with prefix caching",
            remedy="leave it out, or give --prefix-caching for a hybrid target",
        )  # fmt: skip


def _premises(
    request: PlanRequest, model: Model, estimated: Callable[[], Estimate],
    attention: Sequence[Attention], length: int | None, ks: Sequence[int],
    recurrent: Recurrent | None = None,
) -> PlanInputs:  # fmt: skip
    weights = read_weights(model, estimated, request.weights_gib)
    keeps_all = recurrent is None and all(layers.window is None for layers in attention)
    draft = read_draft(
        request,
        model.config,
        kv_bytes=attention[0].element_bytes,
        length=length,
        k=max(ks),
        keeps_all=keeps_all,
    )
    given = request.gpu_mem
    memory = read_memory(cpu=request.cpu) if given is None else Memory(given, "")
    total = memory.gib * request.gpu_memory_utilization * GIB
    loaded = (weights.size + (draft.size if draft else 0)) / request.tp
    tables = rope_table_bytes(model.config) + (draft.tables if draft else 0)
    return PlanInputs(
        request=request, architecture=published_architecture(model.config),
        dtype=served_dtype(model.config), memory=memory, weights=weights, draft=draft, tables=tables,
        budget=max(0, int(total - loaded - tables - request.reserve_gib * GIB)),
        assumptions=assume(
            model.config, release=request.vllm, device=request.device, cpu=request.cpu,
            gdn_prefill=request.gdn_prefill, attention_block=request.attention_block, memory=memory,
            attention=attention[0], is_hybrid=recurrent is not None,
            non_causal_draft=bool(draft and draft.non_causal),
        ),
    )  # fmt: skip


def _settings(premises: PlanInputs, ks: Sequence[int], length: int | None) -> list[CacheSetting]:
    request, assumed = premises.request, premises.assumptions
    if length is None:
        raise OptionsError(
            field="--max-model-len", value=None, allowed="a positive integer",
            remedy="state it, as the target's config.json has no max_position_embeddings",
        )  # fmt: skip
    caches = request.prefix_caching is not False
    return [
        CacheSetting(
            k=k, max_model_len=length, prefix_caching=caches, cpu=request.cpu,
            attention_alignment=assumed.attention_alignment, prefill_exports=assumed.prefill_exports,
        )
        for k in ks
    ]  # fmt: skip


def _hybrid(premises: PlanInputs, target: Target, setting: CacheSetting) -> HybridPlan:
    auto, why = _auto(premises, setting)
    layers = premises.draft_layers
    return HybridPlan(
        premises=premises, target=target, setting=setting, auto=auto, why=why,
        per_token=footprint(target, "per_token", setting, layers),
        replay=footprint(target, "replay", setting, layers),
    )  # fmt: skip


def _auto(premises: PlanInputs, setting: CacheSetting) -> tuple[Scheme, str]:
    """Choose as an engine does on the runner that vLLM chooses by itself: V2 on a GPU, V1 on a CPU."""
    architecture, device = premises.architecture, premises.assumptions.serves
    if architecture and architecture not in REPLAYING_TARGETS:
        return "per_token", f"replay does not know {architecture}"
    runner, caches = "v1" if device.on_cpu else "v2", setting.prefix_caching
    obstacles = runner_obstacles(device.platform, runner, premises.dtype, prefix_caching=caches)
    choice = choose("auto", k=setting.k, device=device, prefix_caching=caches, obstacles=list(obstacles))
    return choice.scheme, choice.reason
